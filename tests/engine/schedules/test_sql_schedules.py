"""Pause, resume, trigger and reschedule by plain SQL: the same as in Python."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Context, Duetime
from duetime.errors import InvalidInput
from duetime.storage.schedules.runs import RunStatements
from duetime.storage.store import Statements
from tests.waiting import until, until_true

START = datetime(2030, 1, 1, 0, 30, tzinfo=UTC)
HOUR = timedelta(hours=1)
TWINS = ("python", "sql")


class Twins:
    """Two schedules that are alike; what is done to one by Python is done to the other by SQL."""

    def __init__(self, app: Duetime) -> None:
        self.app = app

    async def make(self, **policy: Any) -> Twins:
        await self.at(START)
        for name in TWINS:
            await self.app.schedules.put(name, "work", "0 * * * *", args={"n": 1}, **policy)
        return self

    async def at(self, now: datetime) -> None:
        """Set the clock."""
        await (await self.app.store()).drive_clock(now)

    async def plan(self) -> None:
        """Plan on as a worker does, at this very moment."""
        store = await self.app.store()
        statements = RunStatements(store.dialect)

        def plan() -> Statements:
            schedules = yield from statements._lock(names=TWINS)
            yield from statements._plan(schedules, parts=6)

        await store.transact(plan())

    async def sql(self, statement: str, *values: Any) -> list[Any]:
        return await asyncio.to_thread(self._run, statement, values)

    def _run(self, statement: str, values: Any) -> list[Any]:
        with psycopg.connect(self.app.settings.database) as connection:
            connection.execute("set time zone 'Asia/Kolkata'")
            return connection.execute(statement.encode(), values).fetchall()

    async def look(self, name: str) -> dict[str, Any]:
        """All that is stored of one of them, without ids and its name."""
        tables = {
            "schedule": "select target, args, queue, priority, max_attempts, timeout, timetable, "
            "policy, planned_until, next_run_at, last_enqueued_at, paused_at, paused_by, "
            "pause_reason, paused_until, failures, broken, revision, plain, at_once, grace "
            "from duetime.schedule where name = %s",
            "ledger": "select tick, run_at, status, runs_as, o.reason, enqueued_at, finished_at "
            "from duetime.schedule_tick as o join duetime.schedule as s on s.id = o.schedule_id "
            "where name = %s order by tick",
            "jobs": "select j.task, j.queue, j.priority, j.args, replace(j.key, name, ''), j.hold, "
            "j.max_attempts, j.timeout, j.expires_at, d.run_at "
            "from duetime.schedule_tick as o join duetime.schedule as s on s.id = o.schedule_id "
            "join duetime.job as j on j.id = o.job_id join duetime.due as d on d.job_id = j.id "
            "where name = %s order by tick",
            "audit": "select actor, action, before, after, reason from duetime.audit "
            "where entity = 'schedule:' || %s order by id",
        }
        return {what: await self.sql(text, name) for what, text in tables.items()}

    async def same(self) -> None:
        one, other = [await self.look(name) for name in TWINS]
        for part in one:
            assert one[part] == other[part]


@pytest.fixture
async def twins(pg_app: Duetime) -> Twins:
    @pg_app.task(name="work", queue="heavy", timeout="5m")
    async def work(n: int) -> None: ...

    return Twins(pg_app)


@pytest.mark.parametrize("until", [None, START + 10 * HOUR])
async def test_pause(twins: Twins, until: datetime | None) -> None:
    await twins.make()
    await twins.at(START + 20 * timedelta(minutes=1))

    await twins.app.schedules["python"].pause(reason="it moves", until=until, by="ann")
    await twins.sql("select duetime.pause_schedule('sql', 'it moves', %s, 'ann')", until)

    await twins.same()
    [row] = (await twins.look("sql"))["schedule"]
    assert row[11] == START + timedelta(minutes=20)
    assert (await twins.look("sql"))["jobs"] == []


async def test_a_second_pause_changes_the_reason(twins: Twins) -> None:
    await twins.make()
    for reason, by in (("one", "ann"), ("two", "bob")):
        await twins.app.schedules["python"].pause(reason=reason, by=by)
        await twins.sql("select duetime.pause_schedule('sql', %s, actor => %s)", reason, by)

    await twins.same()


@pytest.mark.parametrize("missed", [True, False])
@pytest.mark.parametrize("catch_up", ["all", "latest", "skip"])
async def test_resume(twins: Twins, missed: bool, catch_up: str) -> None:
    await twins.make(catch_up=catch_up, expires="30m")
    await twins.app.schedules["python"].pause(by="ann")
    await twins.sql("select duetime.pause_schedule('sql', actor => 'ann')")
    await twins.at(START + 3 * HOUR)

    await twins.app.schedules["python"].resume(missed=missed, by="bob")
    await twins.sql("select duetime.resume_schedule('sql', %s, 'bob')", missed)
    await twins.plan()

    if missed:
        await twins.same()
        return
    one, other = [await twins.look(name) for name in TWINS]
    assert [one[part] for part in ("schedule", "jobs", "audit")] == [
        other[part] for part in ("schedule", "jobs", "audit")
    ]
    # What the pause has skipped shares one row.
    assert [row[2] for row in one["ledger"]] == ["skipped"] * 3 + ["armed"] * 2
    assert [row[2] for row in other["ledger"]] == ["skipped"] + ["armed"] * 2
    for hour in (1, 2, 3):
        tick = datetime(2030, 1, 1, hour, tzinfo=UTC)
        said = [await twins.app.schedules[name].explain(tick) for name in TWINS]
        assert "paused by ann" in said[0].sentence
        assert "paused by ann" in said[1].sentence


async def test_resuming_twice_changes_nothing(twins: Twins) -> None:
    await twins.make()
    await twins.sql("select duetime.pause_schedule('sql')")
    await twins.sql("select duetime.resume_schedule('sql')")
    before = await twins.look("sql")

    await twins.sql("select duetime.resume_schedule('sql')")

    assert await twins.look("sql") == before


async def test_new_times_of_a_paused_schedule_apply_from_then_on(twins: Twins) -> None:
    await twins.make(catch_up="all")
    for name in TWINS:
        await twins.app.schedules[name].pause(by="ann")
    await twins.at(START + 3 * HOUR)

    await twins.app.schedules.put("python", "work", "*/10 * * * *", args={"n": 1}, catch_up="all")
    await twins.sql(
        """select duetime.schedule('sql', 'work', '*/10 * * * *', args => '{"n": 1}')"""
    )
    await twins.at(START + 3 * HOUR + timedelta(minutes=25))
    for name in TWINS:
        await twins.app.schedules[name].resume(missed=True)
    await twins.plan()
    why = await twins.app.schedules["sql"].explain(datetime(2030, 1, 1, 2, tzinfo=UTC))

    one, other = [await twins.look(name) for name in TWINS]
    assert [row[2] for row in one["ledger"]] == ["skipped"] * 3 + ["armed"] * 4
    assert other["ledger"][1:] == one["ledger"][3:]
    assert other["ledger"][0][2] == "skipped"
    assert "paused by ann" in why.sentence


async def test_the_same_times_of_a_paused_schedule_change_nothing_of_the_pause(
    twins: Twins,
) -> None:
    await twins.make(catch_up="all")
    for name in TWINS:
        await twins.app.schedules[name].pause(by="ann")
    await twins.at(START + 3 * HOUR)

    await twins.sql("""select duetime.schedule('sql', 'work', '0 * * * *', args => '{"n": 1}')""")
    for name in TWINS:
        await twins.app.schedules[name].resume(missed=True)
    await twins.plan()

    one, other = [await twins.look(name) for name in TWINS]
    assert other["ledger"] == one["ledger"]


@pytest.mark.parametrize("expires", [None, "30m"])
async def test_trigger(twins: Twins, expires: str | None) -> None:
    await twins.make(expires=expires)
    for _ in range(2):
        await twins.app.schedules["python"].trigger(by="ann", reason="to see")
        [(job,)] = await twins.sql("select duetime.trigger_schedule('sql', 'to see', 'ann')")
        assert (await twins.app.jobs.get(job)).task == "work"

    await twins.same()
    assert len((await twins.look("sql"))["jobs"]) == 4


@pytest.mark.parametrize("expires", [None, "30m"])
@pytest.mark.parametrize("to", [START + timedelta(minutes=5), START + 4 * HOUR, START - HOUR])
async def test_reschedule(twins: Twins, to: datetime, expires: str | None) -> None:
    await twins.make(expires=expires)

    tick = await twins.app.schedules["python"].reschedule(to, by="ann")
    [(moved,)] = await twins.sql("select duetime.reschedule('sql', %s, 'ann')", to)
    await twins.plan()

    assert moved == tick == START + timedelta(minutes=30)
    await twins.same()


@pytest.mark.parametrize("planned", [True, False])
async def test_reschedule_moves_the_run_that_is_shown_as_the_next(
    twins: Twins, planned: bool
) -> None:
    await twins.make()
    await twins.at(START + 70 * timedelta(minutes=1))
    if planned:
        await twins.plan()
    shown = (await twins.app.schedules.get("sql")).next_run_at

    tick = await twins.app.schedules["python"].reschedule(START + 75 * timedelta(minutes=1))
    [(moved,)] = await twins.sql(
        "select duetime.reschedule('sql', %s, 'unknown')", START + 75 * timedelta(minutes=1)
    )
    await twins.plan()

    assert moved == tick == shown == START + timedelta(minutes=90 if planned else 30)
    await twins.same()


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("select duetime.pause_schedule('no')", "there is no schedule named 'no'"),
        ("select duetime.resume_schedule(null)", "there is no schedule named NULL"),
        ("select duetime.trigger_schedule('no')", "there is no schedule named 'no'"),
        ("select duetime.reschedule('no', now())", "there is no schedule named 'no'"),
        ("select duetime.reschedule('sql', null)", "must not be null"),
        ("select duetime.reschedule('sql', '9500-01-01Z')", "from the year 1970 to 9000"),
        ("select duetime.reschedule('sql', '-infinity')", "from the year 1970 to 9000"),
        ("select duetime.schedule(' ', 'work', '@daily')", "name of a schedule must have 1 to 200"),
        ("select duetime.schedule('sql', ' ', '@daily')", "task of a schedule must have 1 to 200"),
        (
            "select duetime.schedule('sql', repeat('n', 201), '@daily')",
            "task of a schedule must have 1 to 200",
        ),
        ("select duetime.schedule('sql', 'work', null)", "spec and the tz of a schedule must not"),
        (
            "select duetime.schedule('sql', 'work', '@daily', tz => null)",
            "spec and the tz of a schedule must not",
        ),
        ("select duetime.pause_schedule('sql', until => '2029-01-01Z')", "is in the past"),
        ("select duetime.pause_schedule('sql', actor => ' ')", "actor must have 1 to 200"),
        (
            "select duetime.pause_schedule('sql'), duetime.reschedule('sql', now())",
            "has no next run to move",
        ),
    ],
)
async def test_bad_input_is_an_error_and_changes_nothing(
    twins: Twins, statement: str, says: str
) -> None:
    await twins.make()
    before = await twins.look("sql")

    with pytest.raises(psycopg.Error, match=says):
        await twins.sql(statement)

    assert await twins.look("sql") == before


async def test_a_running_worker_obeys(pg_app: Duetime) -> None:
    ran: list[str] = []

    @pg_app.task(name="note")
    async def note(ctx: Context) -> None:
        ran.append(ctx.schedule or "")

    twins = Twins(pg_app)
    await pg_app.schedules.put("s", note, "0 0 1 1 *")
    async with pg_app.worker():
        await twins.sql("select duetime.trigger_schedule('s')")
        await until_true(lambda: len(ran) == 1)
        await twins.sql("select duetime.reschedule('s', now())")
        await until_true(lambda: len(ran) == 2)
        await twins.sql("select duetime.pause_schedule('s')")
        with pytest.raises(InvalidInput, match="no next run"):
            await pg_app.schedules["s"].reschedule("1s")
        await twins.sql("select duetime.resume_schedule('s')")

        async def armed() -> bool:
            return (await pg_app.schedules.get("s")).next_run_at == await january(pg_app)

        await until(armed)

    assert ran == ["s", "s"]


async def january(app: Duetime) -> datetime:
    """The next tick that is not taken: the first was moved, and has run."""
    ticks = {row.tick for row in await app.schedules["s"].history() if row.status == "fired"}
    return max(ticks).replace(year=max(ticks).year + 1)
