"""Old and new releases of one service, and two services, side by side on one database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from duetime import Context, Duetime, JobState
from duetime.domain.schedules.schedule import TickStatus
from duetime.errors import InvalidInput, InvalidSchedule, OlderRelease
from tests.conftest import Backend
from tests.log_events import event_of
from tests.waiting import until

SECOND = timedelta(seconds=1)

pytestmark = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)

Deploy = Callable[..., Duetime]


@pytest.fixture
async def deploy(backend: Backend) -> AsyncIterator[Deploy]:
    """Makes the app of a service's release; it declares schedules of the task `work`."""
    made: list[Duetime] = []

    def make(*, service: str = "shop", release: str = "", **schedules: Any) -> Duetime:
        app = Duetime(backend.url, migrate=True, service=service, release=release, grace="5s")
        made.append(app)

        @app.task(name="work")
        async def work() -> None:
            pass

        for name, spec in schedules.items():
            given = {"spec": spec} if isinstance(spec, str) else dict(spec)
            app.schedule(given.pop("spec"), name=name, **given)(work)
        return app

    yield make
    for app in made:
        await app.close()


async def restart(app: Duetime) -> None:
    """A worker of the app starts, stores what it declares, and stops."""
    async with app.worker():
        pass


async def stored(app: Duetime) -> dict[str, str]:
    return {info.name: info.when for info in await app.schedules.list()}


# Releases


async def test_an_older_release_does_not_write_its_declarations_back(
    deploy: Deploy, caplog: pytest.LogCaptureFixture
) -> None:
    old = deploy(release="9", s="@hourly", dropped="@hourly")
    new = deploy(release="10", s="@daily")
    await restart(old)
    async with new.worker():
        await new.schedules.apply(new.schedules.declared, prune=True)
        await restart(old)
        after = await stored(new)
    await restart(old)

    assert after == await stored(old) == {"s": "cron 0 0 * * * (UTC)"}
    [event, _] = [record for record in caplog.records if event_of(record) == "outdated_release"]
    assert event.levelname == "WARNING"
    told = event.duetime  # type: ignore[attr-defined]
    assert (told["service"], told["release"], told["newest"]) == ("shop", "9", "10")


async def test_a_release_that_declares_nothing_is_the_newest_all_the_same(deploy: Deploy) -> None:
    old, new = deploy(release="1", s="@hourly"), deploy(release="2")
    await restart(new)
    await restart(old)

    assert await stored(old) == {}


async def test_an_older_release_cannot_prune(deploy: Deploy) -> None:
    old, new = deploy(release="1", s="@hourly"), deploy(release="2", s="@daily", t="@daily")
    await restart(new)
    with pytest.raises(OlderRelease, match="deploy it as a newer release"):
        await old.schedules.apply(old.schedules.declared, prune=True)

    assert set(await stored(old)) == {"s", "t"}


async def test_older_code_deployed_as_a_newer_release_holds(deploy: Deploy) -> None:
    await restart(deploy(release="1", s="@hourly"))
    await restart(deploy(release="2", s="@daily"))
    back = deploy(release="3", s="@hourly")
    await restart(back)

    assert await stored(back) == {"s": "cron 0 * * * * (UTC)"}


async def test_without_releases_the_last_worker_that_starts_holds(deploy: Deploy) -> None:
    first, second = deploy(s="@hourly"), deploy(s="@daily")
    await restart(first)
    await restart(second)
    between = await stored(first)
    await restart(first)

    assert between != await stored(first) == {"s": "cron 0 * * * * (UTC)"}


async def test_releases_of_one_service_that_start_together_take_turns(deploy: Deploy) -> None:
    apps = [deploy(release=str(n), s=f"{n} * * * *") for n in range(1, 6)]
    await apps[0].now()
    await asyncio.gather(*(restart(app) for app in apps))

    assert await stored(apps[0]) == {"s": "cron 5 * * * * (UTC)"}


# Renames


async def test_a_renamed_schedule_keeps_its_ledger_its_pause_and_what_comes_after_it(
    deploy: Deploy,
) -> None:
    old = deploy(release="1", nightly="@daily")
    await restart(old)
    await old.schedules.put("report", "work", "@daily", after="nightly")
    async with old.worker():
        await old.schedules["nightly"].trigger()
        await until(lambda: succeeded(old, "nightly"))
    await old.schedules["nightly"].pause(reason="holiday")
    new = deploy(release="2", export={"spec": "@daily", "renamed_from": "nightly"})
    await restart(new)
    await restart(old)
    await restart(new)
    infos = {info.name: info for info in await new.schedules.list()}
    actions = [event.action for event in await new.schedules.audit("export")]

    assert set(infos) == {"export", "report"}
    assert infos["export"].pause_reason == "holiday"
    assert infos["report"].policy.after == "export"
    assert await succeeded(new, "export")
    assert actions == ["schedule.rename"]


async def succeeded(app: Duetime, name: str) -> bool:
    rows = await app.schedules[name].history(status=TickStatus.TRIGGERED)
    return [row.succeeded for row in rows] == [True]


async def test_a_renamed_schedule_is_armed_under_its_new_name(deploy: Deploy) -> None:
    await restart(deploy(release="1", nightly="@daily"))
    new = deploy(release="2", export={"spec": "@hourly", "renamed_from": "nightly"})
    await restart(new)
    jobs = await new.jobs.list(task="work", state="pending")
    info = await new.schedules.get("export")

    assert {(job.key or "").partition("@")[0] for job in jobs} == {"tick:export"}
    assert len(jobs) == 2
    assert info.when == "cron 0 * * * * (UTC)"
    assert info.next_run_at == min(job.run_at for job in jobs if job.run_at is not None)


async def test_the_old_name_is_removed_if_both_are_there(deploy: Deploy) -> None:
    """Code renamed it without saying so first."""
    await restart(deploy(release="1", nightly="@daily"))
    await restart(deploy(release="2", export="@daily"))
    new = deploy(release="3", export={"spec": "@daily", "renamed_from": "nightly"})
    await restart(new)

    assert set(await stored(new)) == {"export"}


async def test_a_former_name_cannot_be_the_name_of_another(deploy: Deploy) -> None:
    app = deploy(nightly="@daily", export={"spec": "@daily", "renamed_from": "nightly"})

    with pytest.raises(InvalidInput, match="Remove renamed_from="):
        await restart(app)


# Services


async def test_prune_removes_only_what_its_own_service_declared(deploy: Deploy) -> None:
    shop = deploy(service="shop", a="@daily", b="@daily")
    mail = deploy(service="mail", c="@daily")
    await restart(shop)
    await restart(mail)
    await shop.schedules.put("by hand", "work", "@daily")
    answer = await mail.schedules.apply([mail.schedules.define("d", "work", "@daily")], prune=True)
    infos = {info.name: info.owner for info in await mail.schedules.list()}

    assert answer == {"c": "removed", "d": "added"}
    assert infos == {"a": "shop", "b": "shop", "by hand": None, "d": "mail"}


async def test_two_services_cannot_declare_one_schedule(deploy: Deploy) -> None:
    shop, mail = deploy(service="shop", s="@daily"), deploy(service="mail", s="@hourly")
    await restart(shop)
    with pytest.raises(InvalidSchedule, match="belongs to the service 'shop'"):
        await restart(mail)

    assert await stored(mail) == {"s": "cron 0 0 * * * (UTC)"}


async def test_a_service_takes_over_what_was_put_at_run_time(deploy: Deploy) -> None:
    app = deploy(s="@daily")
    await app.schedules.put("s", "work", "@hourly")
    await restart(app)
    info = await app.schedules.get("s")

    assert (info.owner, info.declared) == ("shop", True)


# Arguments that only the new release knows


async def test_an_old_worker_parks_a_run_whose_arguments_it_cannot_use(deploy: Deploy) -> None:
    old, new = deploy(release="1"), deploy(release="2")
    ran: list[tuple[str, str]] = []

    @old.task(name="report")
    async def old_report(ctx: Context) -> None:
        ran.append(("old", ctx.worker))

    @new.task(name="report")
    async def new_report(ctx: Context, region: str) -> None:
        ran.append((region, ctx.worker))

    tick = await old.now() + SECOND / 4
    await new.schedules.put("s", new_report, tick, args={"region": "eu"})
    async with old.worker(name="old"):
        parked = await until(lambda: first_job(old, JobState.PARKED))
        async with new.worker(name="new"):
            job = await until(lambda: first_job(new, JobState.COMPLETED))
    [row] = await new.schedules["s"].history()

    assert parked is not None
    assert job is not None
    assert (parked.attempts, job.attempts) == (0, 1)
    assert ran == [("eu", "new")]
    assert (row.status, row.succeeded) == (TickStatus.FIRED, True)


async def first_job(app: Duetime, state: JobState) -> Any:
    jobs = await app.jobs.list(task="report", state=state)
    return jobs[0] if jobs else None


async def test_a_worker_does_not_take_up_again_and_again_what_it_cannot_use(
    deploy: Deploy, caplog: pytest.LogCaptureFixture
) -> None:
    app, other = deploy(), deploy()

    @app.task(name="report")
    async def report() -> None:
        pass

    @other.task(name="report")
    async def other_report(region: str) -> None:
        pass

    tick = await app.now() + SECOND / 4
    await other.schedules.put("s", other_report, tick, args={"region": "eu"})
    async with app.worker():
        await until(lambda: first_job(app, JobState.PARKED))
        # Twice as long as it takes to look for parked jobs.
        looked = await app.now()
        await until(lambda: passed(app, looked + 2 * SECOND))
        job = await first_job(app, JobState.PARKED)

    assert job is not None
    [event] = [record for record in caplog.records if event_of(record) == "job_parked"]
    reason = event.duetime["reason"]  # type: ignore[attr-defined]
    assert "cannot use its arguments" in reason
    assert "region" in reason


async def passed(app: Duetime, moment: datetime) -> bool:
    return await app.now() > moment


# What comes after what


async def test_a_schedule_cannot_come_after_one_that_does_not_exist(deploy: Deploy) -> None:
    app = deploy()
    with pytest.raises(InvalidSchedule, match="comes after 'import', which does not exist"):
        await app.schedules.put("report", "work", "@daily", after="import")

    assert await stored(app) == {}


async def test_schedules_cannot_wait_for_each_other(deploy: Deploy) -> None:
    app = deploy()
    await app.schedules.put("a", "work", "@daily")
    await app.schedules.put("b", "work", "@daily", after="a")
    await app.schedules.put("c", "work", "@daily", after="b")
    with pytest.raises(InvalidSchedule, match="a after c after b after a"):
        await app.schedules.put("a", "work", "@daily", after="c")

    assert (await app.schedules.get("a")).policy.after is None


async def test_schedules_that_come_after_each_other_are_stored_together(deploy: Deploy) -> None:
    app = deploy(report={"spec": "@daily", "after": "load"}, load="@daily")
    await restart(app)

    assert set(await stored(app)) == {"report", "load"}


async def test_a_schedule_that_others_come_after_is_not_removed(deploy: Deploy) -> None:
    app = deploy(load="@daily", report={"spec": "@daily", "after": "load"})
    await restart(app)
    report = app.schedules.declared[1]
    with pytest.raises(InvalidInput, match="'report' depends on it"):
        await app.schedules["load"].delete()
    with pytest.raises(InvalidSchedule, match="which does not exist"):
        await app.schedules.apply(
            [app.schedules.define("report", "work", "@hourly", after="load")], prune=True
        )
    with pytest.raises(InvalidInput, match="'report' depends on it"):
        await app.schedules.apply([report], prune=True)

    assert set(await stored(app)) == {"report", "load"}
