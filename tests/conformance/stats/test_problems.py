"""`app.stats.problems()`: what is wrong, and what mends it."""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime import Constant, Count, Duetime, Flow, ProblemInfo
from duetime.channels.channel import NotSent
from duetime.cli import cli
from duetime.domain.jobs.job import NewJob
from tests.conformance.mailbox import Mailbox
from tests.conftest import Backend, query

NOW = datetime(2026, 3, 8, 9, tzinfo=UTC)
LEASE = timedelta(seconds=30)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


async def only(app: Duetime, code: str) -> ProblemInfo:
    """The only problem of this code, whose command exists."""
    [problem] = [one for one in await app.stats.problems() if one.code == code]
    if problem.action is not None and problem.action.command is not None:
        _, *words = shlex.split(problem.action.command)
        assert cli.main([*words, "--help"], prog_name="duetime", standalone_mode=False) == 0
    return problem


async def mend(app: Duetime, problem: ProblemInfo) -> Any:
    """Call the verb that mends it."""
    assert problem.action is not None
    assert problem.action.verb is not None
    noun, verb = problem.action.verb.split(".")
    return await getattr(getattr(app, noun), verb)(**problem.action.args, by="ann")


async def register(app: Duetime, *queues: str, lease: timedelta = LEASE) -> int:
    store = await app.store()
    return await store.register_worker(
        name="one", queues=queues, tasks={}, concurrency=2, lease=lease
    )


async def test_if_all_is_well_there_is_no_problem(app: Duetime) -> None:
    @app.task(name="fine")
    async def fine() -> None: ...

    async with app.testing(now=NOW) as world:
        await fine.enqueue()
        await world.drain()
        await fine.using(delay="1h").enqueue()
        await app.schedules.put("nightly", fine, "0 3 * * *")

        assert await app.stats.problems() == []


async def test_dead_jobs_are_one_problem_for_each_task_and_error(app: Duetime) -> None:
    @app.task(name="charge", max_attempts=1)
    async def charge(error: str) -> None:
        raise PermissionError(error) if error.startswith("401") else ValueError(error)

    async with app.testing(now=NOW) as world:
        for error in ("401 first", "401 second", "no card."):
            await charge.enqueue(error=error)
            await world.advance("1m")

        several, one = await app.stats.problems()
        assert (several.code, several.severity, several.count) == ("jobs_dead", "error", Count(2))
        assert several.sentence == "The task 'charge' has 2 dead jobs: PermissionError: 401 second."
        assert several.since == NOW
        assert several.detail is not None
        assert "after 1 attempt." in several.detail
        assert several.facts["error_code"] == "PermissionError"
        assert one.sentence == "The task 'charge' has 1 dead job: ValueError: no card."

        assert len((await mend(app, several)).jobs) == 3
        assert await app.stats.problems() == []


async def test_a_queue_that_nobody_serves(app: Duetime) -> None:
    @app.task(name="mail", queue="mail")
    async def mail() -> None: ...

    store = await app.store()
    await store.drive_clock(NOW)
    await mail.enqueue()
    await register(app, "default", "reports", lease=timedelta(days=1))
    await store.drive_clock(NOW + timedelta(minutes=12))

    problem = await only(app, "queue_not_served")

    assert problem.sentence == (
        "No live worker serves the queue 'mail': 1 job waiting, the oldest due for 12m."
    )
    assert problem.detail == "1 live worker serves default, reports."
    assert problem.since == NOW
    assert problem.action is not None
    assert problem.action.command == "duetime worker --app MODULE:APP --queues mail"


async def test_without_any_worker_there_is_one_problem(app: Duetime) -> None:
    @app.task(name="mail", queue="mail")
    async def mail() -> None: ...

    @app.task(name="fine")
    async def fine() -> None: ...

    await mail.enqueue()
    await fine.enqueue()

    [problem] = await app.stats.problems()

    assert problem.code == "no_workers"
    assert problem.count == Count(2)
    assert problem.action is not None
    assert problem.action.command == "duetime worker --app MODULE:APP --queues default,mail"


async def test_a_paused_queue_with_due_jobs_can_be_resumed(app: Duetime) -> None:
    @app.task(name="mail", queue="mail")
    async def mail() -> None: ...

    async with app.testing(now=NOW) as world:
        await app.queues.pause("mail", by="ann", reason="full disk")
        assert await app.stats.problems() == []
        await mail.enqueue()
        await world.advance("5m")

        problem = await only(app, "queue_paused")
        assert problem.sentence == (
            "The queue 'mail' was paused at 2026-03-08 09:00:00 UTC by ann: full disk; 1 job "
            "waiting, the oldest due for 5m."
        )
        await mend(app, problem)
        await world.drain()
        assert await app.stats.problems() == []


async def test_late_jobs_have_the_words_of_explain(app: Duetime) -> None:
    @app.task(name="fine")
    async def fine() -> None: ...

    store = await app.store()
    await store.drive_clock(NOW)
    await app.queues.limit("default", running=1)
    await fine.enqueue()
    await register(app, "default", lease=timedelta(hours=1))
    await store.drive_clock(NOW + timedelta(minutes=2))
    assert [one.code for one in await app.stats.problems(late_after="5m")] == []

    problem = await only(app, "jobs_late")

    assert problem.sentence == "The queue 'default' has 1 late job, the oldest due for 2m."
    assert problem.detail == (await app.queues.explain("default")).sentence
    assert problem.severity == "warning"


async def test_schedules_that_fail_are_paused_or_are_broken(app: Duetime, backend: Backend) -> None:
    @app.task(name="backup", max_attempts=1)
    async def backup() -> None:
        raise OSError("no space")

    async with app.testing(now=NOW) as world:
        await app.schedules.put("hourly", backup, "0 * * * *", pause_after=2)
        await app.schedules.put("daily", backup, "0 10 * * *")
        await world.advance_to(NOW + timedelta(hours=1))

        failing = [one for one in await app.stats.problems() if one.code == "schedule_failing"]
        assert [one.sentence for one in failing] == [
            "Schedule 'daily' has 1 failed run in a row.",
            "Schedule 'hourly' has 1 failed run in a row.",
        ]
        await world.advance_to(NOW + timedelta(hours=2))
        paused = await only(app, "schedule_paused_by_failures")
        assert paused.sentence == (
            "Schedule 'hourly' does not run: paused by duetime: 2 runs failed in a row, since "
            "2026-03-08 11:00:00 UTC."
        )
        await mend(app, paused)
        codes = [one.code for one in await app.stats.problems()]
        assert "schedule_paused_by_failures" not in codes


async def test_lost_and_silent_workers(app: Duetime) -> None:
    store = await app.store()
    await store.drive_clock(NOW)
    await register(app, "default")
    assert await app.stats.problems() == []

    await store.drive_clock(NOW + timedelta(seconds=25))
    silent = await only(app, "worker_silent")
    await store.drive_clock(NOW + timedelta(seconds=35))
    lost = await only(app, "worker_lost")

    assert silent.sentence == (
        "The worker one has sent no heartbeat for 25s: its event loop may be blocked. It holds 0 "
        "jobs."
    )
    assert lost.sentence == (
        "The worker one lost its lease at 2026-03-08 09:00:30 UTC, with 0 jobs to be rescued."
    )


async def test_attempts_that_were_lost_with_their_worker(app: Duetime) -> None:
    @app.task(name="fine")
    async def fine() -> None: ...

    store = await app.store()
    await store.drive_clock(NOW)
    await fine.enqueue()
    worker = await register(app, "default")
    await store.exchange(worker, lanes=[lane("default")], want=1)
    await store.drive_clock(NOW + timedelta(seconds=35))
    await store.rescue()

    problem = await only(app, "jobs_lost")

    assert problem.sentence == (
        "Workers were lost in the last hour, with 1 attempt, the last one at 2026-03-08 09:00:35 "
        "UTC."
    )
    await store.drive_clock(NOW + timedelta(hours=2))
    assert "jobs_lost" not in [one.code for one in await app.stats.problems()]


async def test_parked_jobs_say_why(app: Duetime) -> None:
    async with app.testing(now=NOW) as world:
        await (await app.store()).enqueue([NewJob(task="unknown")])
        await world.drain()

        problem = await only(app, "jobs_parked")

    assert problem.sentence.startswith("The task 'unknown' has 1 parked job: worker ")
    assert problem.sentence.endswith(" does not know the task unknown.")


async def test_flows_that_failed_can_be_retried(app: Duetime) -> None:
    broken = True

    @app.flow(name="order", retry=Constant("1s", max_attempts=1))
    async def order(flow: Flow) -> None:
        if broken:
            raise ValueError("no stock")

    async with app.testing(now=NOW) as world:
        run = await order.start()
        await world.drain()

        problem = await only(app, "runs_failed")
        assert problem.sentence == "The flow 'order' has 1 failed run: ValueError: no stock."
        broken = False
        await mend(app, problem)
        await world.drain()

        assert await run.status() == "completed"
        assert await app.stats.problems() == []


async def test_reminders_that_failed_and_addresses_that_are_disabled(app: Duetime) -> None:
    mail = Mailbox(app, "mail")
    mail.failures = [NotSent("410 Gone", transient=False, disable=True)]
    async with app.testing(now=NOW) as world:
        await app.recipients.put("ann", channels={"mail": "ann@example.org"})
        await app.subjects.put(
            "game:1", due=NOW + timedelta(hours=2), remind=["-1h"], recipients=["ann"]
        )
        await world.advance("1h")

        failed = await only(app, "reminders_failed")
        disabled = await only(app, "addresses_disabled")
        await world.advance("2d")
        later = [one.code for one in await app.stats.problems()]

    assert failed.sentence.startswith("Sending 1 reminder failed in the last day: mail failed")
    assert failed.detail == "The last one was of 'game:1', to ann."
    assert disabled.sentence == (
        "Some addresses accept no more messages: 1 recipient, the last one ann on mail: 410 Gone."
    )
    assert "reminders_failed" not in later


async def test_subjects_that_no_worker_has_armed(app: Duetime) -> None:
    async with app.testing(now=NOW) as world:
        await app.scopes.put("guild", remind=["-1h"])
        await app.subjects.put_many(
            app.subjects.define(f"game:{n}", due=NOW + timedelta(days=9), scope="guild")
            for n in range(510)
        )
        await app.scopes.put("guild", remind=["-2h"])
        for job in [job.id async for job in app.jobs.iterate(task="duetime.rearm")]:
            await app.jobs[job].reschedule(NOW + timedelta(hours=1))
        early = [one.code for one in await app.stats.problems()]
        await world.advance("5m")

        problem = await only(app, "subjects_stale")
        await world.advance("1h")
        later = [one.code for one in await app.stats.problems()]

    assert "subjects_stale" not in early
    assert problem.sentence == (
        "Workers have yet to arm the reminders of 500+ subjects; the oldest change was made 5m ago."
    )
    assert problem.since == NOW
    assert "subjects_stale" not in later


async def test_the_worst_comes_first(app: Duetime) -> None:
    @app.task(name="charge", max_attempts=1)
    async def charge() -> None:
        raise PermissionError("401")

    @app.task(name="mail", queue="mail")
    async def mail() -> None: ...

    async with app.testing(now=NOW) as world:
        await app.queues.pause("mail", by="ann")
        await mail.enqueue()
        await charge.enqueue()
        await world.advance("1m")

        assert [one.code for one in await app.stats.problems()] == ["jobs_dead", "queue_paused"]


async def test_a_table_that_is_not_followed(app: Duetime, backend: Backend) -> None:
    if not backend.is_postgres:
        pytest.skip("SQLite does not record it")
    await app.store()
    query(
        backend,
        "insert into duetime.tracked (name, table_name, owner, definition, problem) values "
        """('games', 'games', 'ann', '{}', '{"code": "triggers_gone"}')""",
    )

    problem = await only(app, "table_broken")

    assert problem.sentence.startswith("The tracked table 'games' is not followed: its triggers")


def lane(queue: str) -> Any:
    from duetime.storage.store import Lane

    return Lane(queue, 5, datetime(1970, 1, 1, tzinfo=UTC))
