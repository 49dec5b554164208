"""The client: the verbs, values and errors of the Python API, over HTTP."""

from __future__ import annotations

import asyncio
import io
import re
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import httpx2
import pytest
from fastapi.routing import APIRoute

import duetime.client
from duetime import Console, Duetime, Flow, Resent, RulesLike, ScheduleArguments, Visitor
from duetime.api.tasks import AsyncTask
from duetime.client import Client
from duetime.domain.access.token import TokenScope
from duetime.errors import (
    DeliveryNotFound,
    FlowEnded,
    IllegalTransition,
    InvalidArguments,
    InvalidInput,
    JobFailed,
    JobNotFound,
    KeyConflict,
    NameTaken,
    QueueNotFound,
    ResultTimeout,
    ScheduleNotFound,
    ServiceError,
    ServiceUnreachable,
    SubjectNotFound,
    UnknownTask,
)
from duetime.web.service import make_service
from tests.channels.http_server import Answer, HttpServer
from tests.conftest import Backend, query
from tests.waiting import until
from tests.web.conftest import Running

Send = AsyncTask[..., Any]
CALLED = re.compile(r'"((?:GET|POST|PUT|PATCH|DELETE) /[^"]*)"')
NOT_CALLED: set[str] = set()
"""Routes that the client has no verb for."""


@pytest.fixture
def backend(tmp_path: Path) -> Backend:
    """SQLite only: the tests of the API show that its answers do not depend on the database."""
    return Backend("sqlite", f"sqlite:///{tmp_path / 'duetime.db'}")


@pytest.fixture
async def client(service: Running) -> AsyncIterator[Client]:
    async with Client(service.url, await token(service)) as client:
        yield client


async def token(service: Running, scope: TokenScope = TokenScope.ADMIN) -> str:
    return (await service.app.tokens.create("ci", scope=scope)).text


@pytest.fixture
def send(service: Running) -> Send:
    @service.app.task(name="mail.send", timeout="90s")
    async def send(to: str) -> dict[str, str]:
        return {"sent": to}

    return send


async def test_a_job_is_what_it_is_in_python(service: Running, client: Client, send: Send) -> None:
    job = await send.enqueue(to="ann")
    async with service.app.worker():
        await job.result()

    assert await client.jobs.get(job.id) == await service.app.jobs.get(job.id)
    assert str(await client.jobs.explain(job.id)) == str(await service.app.jobs.explain(job.id))


async def test_a_job_is_enqueued_and_its_result_awaited(
    service: Running, client: Client, send: Send
) -> None:
    waits = await client.jobs.enqueue("mail.send", {"to": "bob"}, delay=timedelta(hours=1), key="b")
    again = await client.jobs.enqueue("mail.send", {"to": "bob"}, key="b")
    [first, second] = await client.jobs.enqueue_many(
        [{"task": "mail.send", "args": {"to": to}, "priority": 2} for to in ("ann", "eve")]
    )
    with pytest.raises(ResultTimeout) as late:
        await waits.result(timeout="20ms")
    async with service.app.worker():
        result = await first.result()
        await second.result()

    assert (waits.created, again.action, again.id) == (True, "existing", waits.id)
    assert late.value.job_id == waits.id
    assert "0.02 s" in str(late.value)
    assert result == {"sent": "ann"}
    assert (await first.get()).priority == 2


async def test_a_held_key_is_a_conflict(service: Running, client: Client, send: Send) -> None:
    job = await client.jobs.enqueue("mail.send", {"to": "ann"}, delay="1h", key="a")

    with pytest.raises(KeyConflict) as conflict:
        await client.jobs.enqueue("mail.send", {"to": "ann"}, key="a", on_conflict="reject")
    with pytest.raises(InvalidArguments) as wrong:
        await client.jobs.enqueue("mail.send", {"too": "ann"})
    with pytest.raises(UnknownTask):
        await client.jobs.enqueue("mail.sned")

    assert (conflict.value.job_id, conflict.value.key) == (job.id, "a")
    assert wrong.value.task == "mail.send"


async def test_jobs_are_changed(service: Running, client: Client, send: Send) -> None:
    job = await client.jobs.enqueue("mail.send", {"to": "ann"}, delay="1h")
    at = datetime(2030, 1, 1, tzinfo=UTC)

    await client.jobs.reschedule(job.id, at)
    moved = await job.get()
    await job.reprioritise(0)
    await job.retry()
    changed = await job.get()
    await job.cancel()
    await job.requeue(at=at)

    assert moved.run_at == at
    assert (changed.priority, changed.run_at != at) == (0, True)
    assert (await job.get()).run_at == at
    assert {event.actor for event in await job.audit()} == {"token:ci"}


async def test_jobs_are_found(service: Running, client: Client, send: Send) -> None:
    jobs = [await send.enqueue(to=to) for to in ("ann", "bob")]

    found = [
        await client.jobs.list(args={"to": "bob"}),
        await client.jobs.list(args="to=bob", task="mail.send"),
        await client.jobs.list(created_since=datetime.now(UTC) + timedelta(days=1)),
    ]

    assert [[job.id for job in page] for page in found] == [[jobs[1].id], [jobs[1].id], []]


async def test_all_jobs_that_match_are_changed(
    service: Running, client: Client, send: Send
) -> None:
    jobs = [await send.using(delay="1h").enqueue(to=to) for to in ("ann", "bob", "eve")]
    at = datetime(2030, 1, 1, tzinfo=UTC)

    async with service.app.worker():
        moved = await client.jobs.reschedule_all(at, task="mail.send", state="pending")
        await moved.result()
        cancelled = await client.jobs.cancel_all(args={"to": "bob"}, reason="wrong")
        await cancelled.result()
        requeued = await client.jobs.requeue_all(state=["cancelled"], task="mail.send", at=at)
        await requeued.result()
    action = await client.jobs.bulk_action(cancelled.id)

    assert (action.action, action.done, action.by) == ("cancel", 1, "token:ci")
    assert {(await job.get()).run_at for job in jobs} == {at}
    with pytest.raises(InvalidInput):
        await client.jobs.cancel_all()


async def test_arguments_without_names_are_refused_before_they_are_sent(
    client: Client, send: Send
) -> None:
    job = await client.jobs.enqueue("mail.send", {"to": "ann"})
    bad: Any = [1]
    for call in (
        client.jobs.enqueue("mail.send", bad),
        client.jobs.replay(job.id, bad),
        client.flows.start("order", bad),
        client.schedules.put("nightly", "mail.send", "@daily", args=bad),
    ):
        with pytest.raises(InvalidInput, match="args must be a mapping"):
            await call


async def test_jobs_are_counted_and_replayed(service: Running, client: Client) -> None:
    @service.app.task(name="fail", max_attempts=1)
    async def fail(to: str) -> str:
        if to == "ann":
            raise ValueError("no such address")
        return to

    async with service.app.worker():
        job = await client.jobs.enqueue("fail", {"to": "ann"})
        with pytest.raises(JobFailed, match="no such address"):
            await job.result()
        again = await job.replay({"to": "bob"})
        result = await again.result()

    assert result == "bob"
    assert await client.jobs.facets() == await service.app.jobs.facets()
    assert await client.jobs.errors() == await service.app.jobs.errors()


async def test_numbers_are_those_of_python(service: Running, client: Client, send: Send) -> None:
    since = datetime(2026, 3, 28, 12, tzinfo=UTC)
    await client.schedules.put("nightly", "mail.send", "0 3 * * *", args={"to": "ann"})
    async with service.app.worker():
        await (await send.enqueue(to="ann")).result()
    here, there = service.app.stats, client.stats

    assert await there.totals() == await here.totals()
    assert (await there.now(late_after=30)).queues == (await here.now(late_after=30)).queues
    assert await there.heat_map("nightly", days=2) == await here.heat_map("nightly", days=2)
    assert await there.agenda(since=since, limit=1) == await here.agenda(since=since, limit=1)
    assert await there.preview(
        "30 2 * * *", tz="Europe/Berlin", since=since, n=2, exclude=date(2026, 3, 30)
    ) == await here.preview(
        "30 2 * * *", tz="Europe/Berlin", since=since, n=2, exclude=date(2026, 3, 30)
    )
    assert [one.code for one in await there.problems()] == [
        one.code for one in await here.problems()
    ]
    assert len((await there.series(window="1h")).points) in (60, 61)
    assert [one.job_id for one in await there.samples()] == [
        one.job_id for one in await here.samples()
    ]
    assert len((await there.timeline(schedules=["nightly"])).rows) == 1
    assert await there.recipient_week("ann", since=since) == await here.recipient_week(
        "ann", since=since
    )


async def test_queues_are_paused_and_limited(service: Running, client: Client) -> None:
    """Their names may contain anything."""
    for name in ("mail", "a/b c%2F?ü"):
        await client.queues.pause(name, reason="the server is down")
        await client.queues[name].limit(running=3, rate=5, period=timedelta(minutes=1))

        assert await client.queues.get(name) == await service.app.queues.get(name)
        assert (await client.queues.get(name)).name == name
        assert "paused" in str(await client.queues[name].explain())
        assert len(await client.queues.audit(name)) == 2

        await client.queues.resume(name)

    assert [one.name async for one in client.queues.iterate(limit=1)] == ["a/b c%2F?ü", "mail"]
    with pytest.raises(QueueNotFound):
        await client.queues.get("other")


async def test_workers_and_the_audit_are_listed(service: Running, client: Client) -> None:
    async with service.app.worker(name="w1"):
        workers = await client.workers.list()
    await client.queues.pause("mail")

    [event] = await client.audit.list(kind="queue", by="token:ci")
    assert [worker.name for worker in workers] == ["w1"]
    assert (event.entity, event.actor) == ("queue:mail", "token:ci")


async def test_schedules_are_put_and_operated(service: Running, client: Client, send: Send) -> None:
    put = client.schedules.put
    options: ScheduleArguments = {
        "args": {"to": "ann"},
        "tz": "Europe/Berlin",
        "exclude": date(2026, 12, 25),
        "max_age": timedelta(hours=2),
        "pause_after": None,
    }

    assert await put("nightly", "mail.send", "0 3 * * *", **options) == "added"
    assert await put("nightly", "mail.send", "0 3 * * *", **options) == "same"
    assert await put("often", "mail.send", timedelta(minutes=10), args={"to": "bob"}) == "added"
    nightly = client.schedules["nightly"]
    await nightly.pause(reason="migration", until=timedelta(hours=1))
    paused = await nightly.get()
    await nightly.resume()
    triggered = await nightly.trigger(reason="now")
    at = datetime(2030, 1, 1, tzinfo=UTC)
    moved = await nightly.reschedule(at)

    assert paused.pause_reason == "migration"
    assert paused.policy.max_age == timedelta(hours=2)
    assert (await client.jobs.get(triggered)).args == {"to": "ann"}
    assert await nightly.get() == await service.app.schedules.get("nightly")
    assert moved.astimezone(ZoneInfo("Europe/Berlin")).hour == 3
    assert at in [job.run_at for job in await client.jobs.list(task="mail.send")]
    assert await nightly.preview(2, since=at) == await service.app.schedules.preview(
        "nightly", 2, since=at
    )
    assert await nightly.history() == await service.app.schedules.history("nightly")
    assert "'nightly'" in str(await nightly.explain())
    assert [one.name async for one in client.schedules.iterate(limit=1)] == ["nightly", "often"]
    assert {event.actor for event in await nightly.audit()} == {"token:ci"}
    await nightly.delete(reason="no longer needed")
    with pytest.raises(ScheduleNotFound):
        await nightly.get()


async def test_schedules_are_applied_and_previewed(
    service: Running, client: Client, send: Send
) -> None:
    week = {"name": "weekly", "task": "mail.send", "specs": ["0 9 * * 1"], "args": {"to": "ann"}}

    assert await client.schedules.apply([week], prune=True) == {"weekly": "added"}
    assert await client.schedules.apply([], prune=True) == {"weekly": "removed"}
    since = datetime(2026, 3, 28, 12, tzinfo=UTC)
    rows = await client.schedules.preview_times("30 2 * * *", n=1, since=since, tz="Europe/Berlin")
    assert rows[0].notes
    assert await client.schedules.presets.put("Tea", "0 17 * * *") == "added"
    assert (await client.schedules.presets.get("Tea")).spec == "0 17 * * *"
    assert "Tea" in [one.name async for one in client.schedules.presets.iterate()]
    assert len(await client.schedules.presets.audit("Tea")) == 1
    await client.schedules.presets.delete("Tea")


async def test_scopes_and_recipients_are_put(service: Running, client: Client) -> None:
    scopes, recipients = client.scopes, client.recipients
    rules: RulesLike = ["-1d at 09:00", {"rule": "-1h", "channels": ["push"]}]

    assert await scopes.put("guild:1", remind=rules, locked=True) == "added"
    assert await scopes.put("team/1", parent="guild:1") == "added"
    assert await scopes.get("guild:1") == await service.app.scopes.get("guild:1")
    assert await scopes.list() == await service.app.scopes.list()
    assert "guild:1" in str(await scopes["team/1"].explain())
    assert len(await scopes["team/1"].audit()) == 1
    for ref in ("guild:1", "team/1"):
        assert await scopes[ref].changes() == await service.app.scopes.changes(ref)
    await scopes["team/1"].delete()

    ann = {"push": "token-1", "email": "ann@example.org"}
    assert (
        await recipients.put("ann", tz="Asia/Tokyo", channels=ann, quiet="22:00-07:00") == "added"
    )
    assert await recipients["ann"].mute("scope:guild:1") == "changed"
    assert await recipients.get("ann") == await service.app.recipients.get("ann")
    assert (await recipients.get("ann")).muted == ("scope:guild:1",)
    assert await recipients["ann"].unmute("scope:guild:1") == "changed"
    assert [one.ref async for one in recipients.iterate()] == ["ann"]
    assert len(await recipients.audit("ann")) == 3
    await recipients.delete("ann")


async def test_a_move_of_a_subject_is_previewed(service: Running, client: Client) -> None:
    due = datetime(2030, 5, 1, 18, tzinfo=UTC)
    await client.subjects.put("task:1", due=due, remind=["-1h", "-1d"], recipients=["ann"])
    later = due + timedelta(days=1)

    shown = await client.subjects["task:1"].preview_move(later)
    expected = await service.app.subjects.preview_move("task:1", later)

    assert [(one.rule, one.run_at) for one in shown.armed] == [
        (one.rule.text, one.run_at) for one in expected.armed
    ]
    assert len(shown.armed) == 2
    assert [one.id for one in shown.superseded] == [one.id for one in expected.superseded]
    assert [one.id for one in shown.kept] == [one.id for one in expected.kept]
    assert (await client.subjects.get("task:1")).due_at == due
    with pytest.raises(SubjectNotFound):
        await client.subjects.preview_move("task:2", later)
    with pytest.raises(InvalidInput, match="has no time zone"):
        await client.subjects.preview_move("task:1", datetime(2030, 5, 1))


async def test_an_overview_and_a_search_are_as_in_python(
    service: Running, client: Client, send: Send
) -> None:
    before = await client.stats.change_mark()
    job = await send.using(key="order:7").enqueue(to="ann")

    assert await client.stats.change_mark() != before
    assert await client.stats.search("order:7") == await service.app.stats.search("order:7")
    assert [one.id for one in await client.stats.search("order:7")] == [job.id]
    assert await client.stats.search("mail", limit=1) == await service.app.stats.search(
        "mail", limit=1
    )
    now, problems = await client.stats.overview(late_after="5m")
    expected, wrong = await service.app.stats.overview(late_after="5m")
    assert (now.waiting, [one.code for one in problems]) == (
        expected.waiting,
        [one.code for one in wrong],
    )
    with pytest.raises(InvalidInput):
        await client.stats.overview(late_after=0)


async def test_subjects_are_put_and_changed(service: Running, client: Client) -> None:
    due = datetime(2030, 5, 1, 18, tzinfo=UTC)
    rules: RulesLike = ["-1d at 09:00", timedelta(hours=-1)]
    game, weekly = client.subjects["game/42"], client.subjects["weekly"]

    assert await game.put(due=due, remind=rules, recipients=["ann"], data={"a": 1}) == "added"
    assert await game.put(due=due, remind=rules, recipients=["ann"], data={"a": 1}) == "same"
    assert (
        await weekly.put(repeats={"cron": "0 18 * * 5", "start": due}, tz="Asia/Tokyo") == "added"
    )
    first, second = await weekly.occurrences(2, since=due)
    await weekly.skip(first.due)
    await weekly.move(second.due, second.due + timedelta(hours=1))

    for ref in ("game/42", "weekly"):
        there, here = await client.subjects.get(ref), await service.app.subjects.get(ref)
        here.planned = None
        assert there == here
    assert (await weekly.occurrences(1, since=due))[0].original == second.due
    await weekly.restore(first.due)
    assert (await weekly.occurrences(1, since=due))[0] == first
    assert await game.rules() == (["-1d at 09:00", "-1h"], "game/42")
    assert "game/42" in str(await game.explain())
    assert [one.ref async for one in client.subjects.iterate(status="open")] == [
        "game/42",
        "weekly",
    ]
    await weekly.complete(occurrence=first.due)
    await game.complete(reason="played")
    assert (await game.get()).status == "done"
    assert await client.subjects.put_many(
        [{"ref": "b", "due": due}, {"ref": "c", "due": None}]
    ) == {
        "b": "added",
        "c": "added",
    }
    await client.subjects.delete("b", reason="cancelled")
    with pytest.raises(SubjectNotFound):
        await client.subjects.get("b")


async def test_subjects_are_exchanged_as_calendars(service: Running, client: Client) -> None:
    due = datetime(2030, 5, 1, 18, tzinfo=UTC)
    await client.subjects.put("game", due=due, remind=["-1h"])

    calendar = await client.subjects.export_ical(["game"])
    imported = await client.subjects.import_ical(calendar, remind=["-2h"], dry_run=True)

    assert b"SUMMARY" in calendar
    assert list(imported.results.values()) == ["changed"]


async def test_reminders_are_followed(service: Running, client: Client) -> None:
    service.app.add_channel(Console(io.StringIO()))
    due = await service.app.now() + timedelta(minutes=50)
    rules: RulesLike = [{"rule": "-1h", "past": "send_now"}, "-30m"]
    await client.subjects.put("game", due=due, remind=rules, recipients=["ann"])
    async with service.app.worker():
        [sent] = await until(lambda: client.reminders.list(status="sent"))
    [armed] = await client.reminders.preview(3600)

    assert (sent.rule, armed.rule, sent.recipient, sent.channel) == (
        "-1h",
        "-30m",
        "ann",
        "console",
    )
    assert (await client.reminders.get(sent.id)) == sent
    assert await client.reminders.deliveries(sent.id) == await service.app.reminders.deliveries(
        sent.id
    )
    assert "sent" in str(await client.reminders.explain(sent.id))
    assert (await client.reminders[armed.id].message()).recipient == "ann"
    assert await client.reminders.acknowledge(sent.id) is True
    assert await client.reminders.acknowledge(sent.id) is False
    assert await client.reminders[sent.id].snooze("10m") > await service.app.now()
    with pytest.raises(InvalidInput, match="Nothing holds reminder"):
        await client.reminders[armed.id].send_anyway()
    assert await client.reminders.resend_many() == Resent([], {})
    with pytest.raises(DeliveryNotFound):
        await client.receipt("SM1", "delivered")
    with pytest.raises(DeliveryNotFound, match="No message has the key 'dtr_1'") as unknown:
        await client.receipt(None, "delivered", key="dtr_1")
    assert (unknown.value.external_id, unknown.value.key) == (None, "dtr_1")
    with pytest.raises(DeliveryNotFound):
        await client.reminders.acknowledge("SM1")


async def test_flows_are_started_and_signalled(service: Running, client: Client) -> None:
    @service.app.flow(name="order")
    async def order(flow: Flow, order_id: int) -> Any:
        return await flow.wait_for("approved", correlation=f"order:{order_id}")

    run = await client.flows.start("order", {"order_id": 7}, key="order:7")
    again = await client.flows.start("order", {"order_id": 7}, key="order:7")
    async with service.app.worker():
        waiting = await until(lambda: client.flows.list(state="waiting"))
        assert await run.signal("note", {"text": "soon"}, key="n") is True
        assert await run.signal("note", {"text": "soon"}, key="n") is False
        told = await client.flows.signal_all("approved", {"by": "ann"}, correlation="order:7")
        result = await run.result()

    assert (run.created, again.created, again.id) == (True, False, run.id)
    assert [one.id for one in waiting] == told == [run.id]
    assert result == {"by": "ann"}
    assert await run.get() == await service.app.flows.get(run.id)
    assert await run.steps() == await service.app.flows.steps(run.id)
    assert await run.status() == "completed"
    assert "completed" in str(await run.explain())
    for change in (run.retry, run.cancel, partial(run.rerun, from_step=1)):
        with pytest.raises((FlowEnded, IllegalTransition)):
            await change()


async def test_tokens_and_accounts_are_managed(service: Running, client: Client) -> None:
    created = await client.tokens.create("deploy", scope="operate", expires_in=timedelta(days=90))
    async with Client(service.url, created.text) as deploy:
        assert await deploy.visitor() == Visitor("token:deploy", TokenScope.OPERATE)
    assert (await client.tokens.get("deploy")).scope is TokenScope.OPERATE
    assert [one.name async for one in client.tokens.iterate()] == ["ci", "deploy"]
    assert await client.tokens.revoke("deploy") is True
    assert await client.tokens.revoke("deploy") is False
    assert len(await client.tokens.audit("deploy")) == 2

    password = "correct horse battery staple"
    for name in ("ann", "bob"):
        await client.accounts.add(name, role="admin", password=password)
    with pytest.raises(NameTaken):
        await client.accounts.add("ann", role="admin", password=password)
    assert await client.accounts.set_role("bob", "viewer") is True
    await client.accounts.set_password("bob", password[::-1])
    assert await client.accounts.disable("bob") is True
    assert await client.accounts.enable("bob") is True
    assert await client.accounts.get("bob") == await service.app.accounts.get("bob")
    assert [one.name async for one in client.accounts.iterate()] == ["ann", "bob"]
    assert len(await client.accounts.audit("bob")) == 5
    await client.accounts.delete("bob")


async def test_tables_are_tracked(service: Running, client: Client, backend: Backend) -> None:
    query(backend, "create table games (id integer primary key, starts_at text)")

    plan = await client.tables.plan("games", id="id", due="starts_at")
    assert await client.tables.put("games", id="id", due="starts_at", remind=["-1h"]) == "added"
    assert await client.tables.get("games") == await service.app.tables.get("games")
    assert await client.tables.list() == await service.app.tables.list()
    assert plan
    assert len(await client.tables.audit("games")) == 1
    assert await client.tables.delete("games") == 0


async def test_tables_of_scopes_are_tracked(
    service: Running, client: Client, backend: Backend
) -> None:
    query(backend, "create table guilds (id integer primary key, minutes text)")
    query(backend, "create table channels (id integer primary key, guild integer, minutes text)")
    query(backend, "insert into guilds values (1, '60, 15')")
    query(backend, "insert into channels values (9, 1, null)")

    await client.tables.put(
        "channels", kind="scopes", id="id", parent="guilds:{guild}", remind="minutes"
    )
    await client.tables.put("guilds", kind="scopes", id="id", remind="minutes")

    info = await client.tables.get("channels")
    assert (info.scopes, info.problems, info.track.remind_from) == (1, 0, "minutes")
    assert (await client.scopes.get("channels:9")).parent == "guilds:1"
    assert [rule.text for rule in (await client.scopes.get("guilds:1")).rules or ()] == [
        "-1h",
        "-15m",
    ]
    assert await client.scopes.put("team", remind=[60, "30"]) == "added"
    assert [rule.text for rule in (await client.scopes.get("team")).rules or ()] == ["-1h", "-30m"]
    assert await client.tables.delete("channels") == 1


async def test_lists_have_pages(service: Running, client: Client, send: Send) -> None:
    handles = [await send.enqueue(to=str(number)) for number in range(5)]
    newest_first = [handle.id for handle in reversed(handles)]

    page = await client.jobs.list(state=["pending", "dead"], limit=2)
    rest = await client.jobs.list(state="pending", after=page.next)
    all_ids = [job.id async for job in client.jobs.iterate(limit=2)]

    assert [job.id for job in (*page, *rest)] == all_ids == newest_first


async def test_a_change_is_made_by_the_token(service: Running, client: Client, send: Send) -> None:
    job = await send.enqueue(to="ann")

    was = await client.jobs.cancel(job.id, reason="wrong address")

    [event] = await service.app.jobs.audit(job.id)
    assert was == "pending"
    assert (event.actor, (await job.get()).error) == ("token:ci", "wrong address")


async def test_errors_are_those_of_the_python_api(
    service: Running, client: Client, send: Send
) -> None:
    job = await send.enqueue(to="ann")
    async with service.app.worker():
        await job.result()

    with pytest.raises(JobNotFound, match="There is no job 4711") as missing:
        await client.jobs.get(4711)
    with pytest.raises(IllegalTransition) as ended:
        await client.jobs.cancel(job.id)
    with pytest.raises(InvalidInput):
        await client.jobs.list(limit=0)

    assert missing.value.job_id == 4711
    assert ended.value.job_id == job.id


async def test_a_token_is_needed_and_its_scope_counts(service: Running) -> None:
    async with Client(service.url, "dt_wrong") as stranger:
        with pytest.raises(ServiceError) as unknown:
            await stranger.jobs.list()
    async with Client(service.url, await token(service, TokenScope.READ)) as reader:
        await reader.jobs.list()
        with pytest.raises(ServiceError) as refused:
            await reader.jobs.cancel(1)

    assert (unknown.value.status, unknown.value.code) == (401, "not_authenticated")
    assert (refused.value.status, refused.value.code) == (403, "not_allowed")


async def test_sync_code_calls_the_same_verbs(service: Running, send: Send) -> None:
    job = await send.enqueue(to="ann")
    client = Client(service.url, await token(service))

    def work() -> int:
        try:
            return client.sync(client.jobs.get(job.id)).id
        finally:
            client.sync(client.close())

    assert await asyncio.to_thread(work) == job.id


class LosesAnswers(httpx2.AsyncHTTPTransport):
    """Loses the answer to every other request."""

    lost = 0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        self.lost += 1
        if self.lost % 2:
            await response.aclose()
            raise httpx2.ReadError("lost")
        return response


async def test_a_change_whose_answer_is_lost_is_made_once(service: Running, send: Send) -> None:
    transport = LosesAnswers()
    async with Client(service.url, await token(service), transport=transport) as client:
        job = await client.jobs.enqueue("mail.send", {"to": "ann"})
        [found] = await client.jobs.list()

    assert (job.created, found.id) == (True, job.id)
    assert transport.lost == 4


async def test_a_service_that_is_unavailable_is_asked_again() -> None:
    server = HttpServer()
    async with server.listening():
        server.answer = lambda _: Answer(503, body=b'{"detail": "later", "code": "x"}')
        async with Client(server.url, "dt_1") as client:
            with pytest.raises(ServiceError, match="later"):
                await client.jobs.cancel(7)

    assert len(server.requests) == 4
    assert len({request.headers["idempotency-key"] for request in server.requests}) == 1
    assert server.requests[0].path == "/hook/api/v1/jobs/7/cancel", "it may be mounted anywhere"


async def test_a_redirect_is_not_followed_and_no_page_is_taken_for_an_answer() -> None:
    server = HttpServer()
    async with server.listening():
        async with Client(server.url, "dt_hunter2") as client:
            for answer in (
                Answer(302, {"location": "http://127.0.0.1:1/"}),
                Answer(200, body=b"<html>"),
                Answer(404, body=b"<html>"),
            ):
                server.answer = lambda _, answer=answer: answer  # type: ignore[misc]
                with pytest.raises(ServiceError) as failed:
                    await client.jobs.get(7)
                assert failed.value.code == "unexpected_answer"

    assert len(server.requests) == 3
    assert "hunter2" not in f"{client!r} {vars(client)}"


async def test_a_service_that_is_away_is_an_error() -> None:
    async with HttpServer().listening() as server:
        gone = server.url
    async with Client(gone, "dt_1") as client:
        with pytest.raises(ServiceUnreachable, match=r"127\.0\.0\.1 did not answer"):
            await client.jobs.cancel(7)


@pytest.mark.parametrize(
    "url", ["", "jobs.example.com", "ftp://x/", "https://ann:pw@x/", "http://x:y/"]
)
def test_the_url_is_checked(url: str) -> None:
    with pytest.raises(InvalidInput, match="URL"):
        Client(url, "dt_1")


@pytest.mark.parametrize("text", ["", "dt_\n", "dt_ü"])
def test_the_token_is_checked(text: str) -> None:
    with pytest.raises(InvalidInput, match="token"):
        Client("https://jobs.example.com", text)


def test_every_route_of_the_api_has_a_verb() -> None:
    service = make_service(Duetime("sqlite:///:memory:"), parts=["api"])
    routes = {
        f"{method} {route.path.removeprefix('/api/v1')}"
        for route in service.routes
        if isinstance(route, APIRoute) and route.path.startswith("/api/v1/")
        for method in route.methods or ()
    }
    folder = Path(duetime.client.__file__).parent
    called = {
        route for module in folder.glob("*.py") for route in CALLED.findall(module.read_text())
    }

    assert called <= routes
    assert routes - called == NOT_CALLED


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
async def test_numbers_that_json_does_not_have_are_refused(number: float) -> None:
    """They would be sent as null: no delay at all."""
    client = Client("https://jobs.example.com", "dt_1")
    with pytest.raises(InvalidInput, match="delay"):
        await client.jobs.enqueue("send", {}, delay=number)
    with pytest.raises(InvalidInput, match="data holds"):
        await client.subjects.put("game", due=None, data={"price": number})


@pytest.mark.parametrize("name", ["", ".", ".."])
async def test_a_name_that_is_no_part_of_an_address_is_refused(name: str) -> None:
    client = Client("https://jobs.example.com", "dt_1")
    with pytest.raises(InvalidInput):
        await client.queues.get(name)
