"""Schedules under racing planners: no deadlock, no tick lost, no tick doubled.

Most tests move ten planners by hand, each on a store of its own, under a driven clock. The others
are workers on real time that die.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import msgspec
import psycopg
import pytest

from duetime import Constant, Context, Duetime
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob
from duetime.domain.schedules.schedule import CatchUp, TickStatus, make_policy
from duetime.domain.schedules.timetable import timetable
from duetime.errors import DatabaseUnreachable
from duetime.settings import Settings
from duetime.storage.migrations import upgrade
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.schedules.rows import ClaimedRun, NewSchedule, TickInfo
from duetime.storage.schedules.runs import RunStatements
from duetime.storage.store import Statements, Store
from duetime.wiring import make_migrator, make_store
from tests import effects, waiting
from tests.conformance.hand import Hand, ended
from tests.conftest import Backend
from tests.waiting import until, until_true
from tests.workload import worker_process

START = datetime(2030, 1, 1, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)
MINUTE = timedelta(minutes=1)
HOUR = timedelta(hours=1)
SHORT: dict[str, Any] = {"lease": "1s", "heartbeat": "200ms", "rescue_every": "200ms"}
PLANNERS = 10
TABLES = ("schedule", "schedule_tick", "job", "job_key", "due", "attempt", "audit")

on_postgres = pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
on_both = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
with_two = pytest.mark.parametrize("fleet", [2], ids=["two"], indirect=True)


class Planner:
    """One worker's planner, moved by hand: does what the engine's does."""

    def __init__(self, store: Store, hand: Hand) -> None:
        self.store = store
        self.hand = hand
        self.statements = ScheduleStatements(store.dialect)
        self.runs = RunStatements(store.dialect)

    async def do(self, statements: Statements, *, reads: bool = False) -> Any:
        return await self.store.transact(statements, reads=reads)

    async def apply(self, *new: NewSchedule, by: str = "test") -> dict[str, str]:
        answer: dict[str, str] = await self.do(self.statements.apply(new, actor=by, prune=False))
        return answer

    async def gate(self, jobs: Sequence[ClaimedJob]) -> list[ClaimedRun]:
        runs: list[ClaimedRun] = await self.do(self.runs.gate([job.id for job in jobs]), reads=True)
        return runs

    async def claim(self) -> tuple[list[ClaimedJob], list[ClaimedRun]]:
        jobs = await self.hand.claim()
        return jobs, await self.gate(jobs)

    async def advance(self, runs: Sequence[ClaimedRun]) -> None:
        await self.do(self.runs.advance(runs, "hand"))

    async def repair(self) -> int:
        return int(await self.do(self.runs.repair()))

    async def record_finished(self, jobs: Sequence[int]) -> list[str]:
        paused, _ = await self.do(self.runs.record_finished(jobs))
        return list(paused)

    async def pause(self, name: str) -> None:
        await self.do(self.statements.pause(name, actor="ann", reason="race", until=None))

    async def resume(self, name: str, *, missed: bool = False) -> None:
        await self.do(self.statements.resume(name, actor="ann", missed=missed))

    async def work(self) -> int:
        """Claim what is due, decide, run, record, plan on. Returns how many were claimed."""
        jobs, runs = await self.claim()
        unclear = [run for run in runs if not run.clear]
        decisions = {}
        if unclear:
            decisions = await self.do(self.runs.decide(unclear, "hand"))
        waiting, ends = [], []
        for job in jobs:
            decision = decisions.get(job.id)
            if decision is not None and decision.action == "wait":
                job.run_at = decision.at
                waiting.append(job)
            elif decision is not None and decision.action == "skip":
                ends.append(ended(job, AttemptOutcome.CANCELLED, error=str(decision.reason)))
            else:
                ends.append(ended(job))
        if runs:
            await self.advance(runs)
        await self.hand.release(*waiting)
        await self.hand.end(*ends)
        await self.record_finished([end.job.id for end in ends])
        return len(jobs)


class Fleet:
    """Ten planners on one database, whose clock stands still until moved."""

    def __init__(self, url: str, planners: Sequence[Planner]) -> None:
        self.url = url
        self.planners = planners
        self.first = planners[0]
        self.now = START
        self._tables = "duetime." if url.startswith("postgresql") else "duetime_"

    async def move(self, by: timedelta) -> None:
        self.now += by
        await self.first.store.drive_clock(self.now)

    async def together(self, act: Callable[[Planner], Coroutine[Any, Any, Any]]) -> list[Any]:
        """All at once; a deadlock, or any other error, fails the test."""
        async with asyncio.timeout(30):
            return await asyncio.gather(*(act(planner) for planner in self.planners))

    def query(self, statement: str) -> list[Any]:
        """`{schedule}` and so on are the tables' names."""
        tables = {name: f"{self._tables}{name}" for name in TABLES}
        return effects.run(self.url, statement.format(**tables))

    async def ledger(self, name: str) -> list[TickInfo]:
        """Oldest first."""
        rows: list[TickInfo] = await self.first.do(
            self.first.statements.history(name, since=None, before=None, status=None, limit=9999),
            reads=True,
        )
        return rows[::-1]

    async def statuses(self, name: str) -> list[str]:
        """What became of the ticks up to now, oldest first."""
        return [row.status.value for row in await self.ledger(name) if row.tick <= self.now]

    async def check_armed(self, *names: str) -> None:
        """Two ticks of each lie ahead, each with one job that waits, and no other job does."""
        waiting = self.query("select job_id from {due} order by job_id")
        armed = []
        for name in names:
            ahead = [row for row in await self.ledger(name) if row.tick > self.now]
            assert [row.status for row in ahead] == [TickStatus.ARMED] * 2, name
            assert [row.tick - self.now for row in ahead] == [MINUTE, 2 * MINUTE], name
            armed += [row.job_id for row in ahead]
        assert [row[0] for row in waiting] == sorted(map(int, filter(None, armed)))


@pytest.fixture
async def fleet(request: pytest.FixtureRequest, backend: Backend) -> AsyncIterator[Fleet]:
    settings = Settings(database=backend.url, pool_size=2)
    upgrade(make_migrator(settings))
    planners = []
    for number in range(getattr(request, "param", PLANNERS)):
        store = make_store(settings)
        await store.open()
        if not number:
            await store.drive_clock(START)
        hand = await Hand.register(store, ["default"], 99 * MINUTE, f"hand {number}")
        planners.append(Planner(store, hand))
    yield Fleet(backend.url, planners)
    for planner in planners:
        await planner.store.close()


def every_minute(name: str, **policy: Any) -> NewSchedule:
    return NewSchedule(
        name=name, target="noop", timetable=timetable("@every 1m"), policy=make_policy(policy)
    )


# Ten at once


@on_both
async def test_ten_planners_that_advance_one_run_arm_what_follows_once(fleet: Fleet) -> None:
    names = [f"s{number:02}" for number in range(20)]
    await fleet.first.apply(*map(every_minute, names))
    for _ in range(3):
        await fleet.move(MINUTE)
        jobs, runs = await fleet.first.claim()

        await fleet.together(lambda planner, runs=runs: planner.advance(runs))  # type: ignore[misc]

        assert len(runs) == len(names)
        assert all(run.clear for run in runs)
        await fleet.check_armed(*names)
        await fleet.first.hand.finish(*jobs)
        await fleet.first.record_finished([job.id for job in jobs])

    for name in names:
        assert await fleet.statuses(name) == ["fired"] * 3


@on_both
async def test_ten_repairs_after_an_outage_judge_each_tick_once(fleet: Fleet) -> None:
    names = ["all", "latest", "skip"]
    await fleet.first.apply(*(every_minute(name, catch_up=name) for name in names))
    await fleet.move(10 * MINUTE + 30 * SECOND)

    await fleet.together(lambda planner: planner.repair())
    waiting = fleet.query("select run_at from {due}")
    while await fleet.first.work():
        pass

    # Of each two were armed before, and two are ahead; eight more of `all` and one of `latest`.
    assert len(waiting) == 3 * 4 + 8 + 1
    assert await fleet.statuses("all") == ["caught_up"] * 10
    assert await fleet.statuses("latest") == ["coalesced"] * 9 + ["caught_up"]
    assert await fleet.statuses("skip") == ["skipped"] * 10


@on_both
@with_two
async def test_a_long_outage_is_planned_in_parts(fleet: Fleet) -> None:
    """However long it was, no transaction is; and no tick is left out."""
    every_second = msgspec.structs.replace(every_minute("s"), timetable=timetable("@every 1s"))
    await fleet.first.apply(every_second)
    await fleet.move(2 * HOUR)

    await fleet.first.repair()
    [(first,)] = fleet.query("select count(*) from {schedule_tick}")
    while await fleet.first.repair():
        pass
    [(ticks,)] = fleet.query("select count(*) from {schedule_tick}")

    assert first <= 5000
    assert ticks == 2 * 3600 + 2


@on_both
async def test_of_two_ticks_claimed_at_once_by_two_workers_one_runs(fleet: Fleet) -> None:
    """overlap=skip, whoever looks first: gate and decision of both at the same moment."""
    await fleet.first.apply(every_minute("s", grace="1h"))
    one, two = fleet.planners[:2]

    async def admit(planner: Planner, job: ClaimedJob) -> str:
        [run] = await planner.gate([job])
        if run.clear:
            await planner.advance([run])
            return "run"
        decision = (await planner.do(planner.runs.decide([run], "hand")))[job.id]
        if decision.action == "wait":
            job.run_at = decision.at
            await planner.hand.release(job)
        await planner.do(planner.runs.advance([], "hand", decided=[run.schedule_id]))
        return str(decision.action)

    for number in range(1, 6):
        await fleet.move(START + 2 * number * MINUTE - fleet.now)
        early, late = [await planner.hand.claim_one() for planner in (one, two)]
        first, second = await asyncio.gather(admit(one, early), admit(two, late))
        if second == "wait":
            # It came before the other's start was recorded, and looks again.
            await fleet.move(SECOND)
            late = await two.hand.claim_one()
            second = await admit(two, late)

        assert (first, second) == ("run", "skip")
        await one.hand.finish(early)
        await two.hand.end(ended(late, AttemptOutcome.CANCELLED, error="overlap"))
        await one.record_finished([early.id])
        await two.record_finished([late.id])

    assert await fleet.statuses("s") == ["fired", "skipped"] * 5


@on_both
@with_two
async def test_of_a_moved_run_and_the_next_claimed_at_once_one_runs(fleet: Fleet) -> None:
    """The first is moved behind the second: that one comes first, whoever looks first."""
    await fleet.first.apply(every_minute("s", grace="1h"))
    moved = START + MINUTE, START + 2 * MINUTE + SECOND
    await fleet.first.do(fleet.first.statements.reschedule("s", moved[1], actor="ann"))
    await fleet.move(2 * MINUTE + SECOND)
    jobs = [await planner.hand.claim_one() for planner in fleet.planners]

    runs = [
        *await fleet.planners[0].gate([jobs[0]]),
        *await fleet.planners[1].gate([jobs[1]]),
    ]
    order = sorted(runs, key=lambda run: run.tick, reverse=True)
    decisions = {
        run.tick: (await fleet.first.do(fleet.first.runs.decide([run], "hand")))[run.job_id]
        for run in order
    }

    assert [run.clear for run in runs] == [False, False]
    assert decisions[START + 2 * MINUTE].action == "run"
    assert decisions[moved[0]].action == "skip"


@on_both
@with_two
async def test_a_run_that_was_claimed_before_the_pause_does_not_start(fleet: Fleet) -> None:
    await fleet.first.apply(every_minute("s"))
    await fleet.move(MINUTE)
    job = await fleet.first.hand.claim_one()
    await fleet.first.do(
        fleet.first.statements.pause("s", actor="ann", reason="holiday", until=None)
    )
    [run] = await fleet.first.gate([job])
    decision = (await fleet.first.do(fleet.first.runs.decide([run], "hand")))[job.id]

    assert not run.clear
    assert decision.action == "skip"
    assert "holiday" in str(decision.reason)


@on_both
@with_two
async def test_a_run_that_was_skipped_by_a_worker_that_died_does_not_run(fleet: Fleet) -> None:
    """The ledger was written, and the worker died before the job was ended."""
    await fleet.first.apply(every_minute("s", catch_up="skip"))
    one, two = fleet.planners
    await fleet.move(MINUTE + 30 * SECOND)
    jobs, runs = await one.claim()
    decisions = await one.do(one.runs.decide(runs, "hand"))
    await asyncio.to_thread(two.store.heart().beat, two.hand.id, 999 * MINUTE)
    await fleet.move(99 * MINUTE)
    rescued = await two.store.rescue()
    [again] = [job for job in await two.hand.claim() if job.id == jobs[0].id]

    [run] = await two.gate([again])
    decision = (await two.do(two.runs.decide([run], "hand")))[again.id]

    assert decisions[jobs[0].id].action == "skip"
    assert [job.job_id for job in rescued] == [again.id]
    assert (again.attempt, run.clear, run.unbegun) == (2, False, True)
    assert decision.action == "skip"


@on_both
@with_two
async def test_a_run_that_waits_for_one_that_is_skipped_goes_on_at_once(fleet: Fleet) -> None:
    """The run that is caught up is checked before the missed ones, which another worker holds."""
    one, two = fleet.planners
    ticks = [START + n * SECOND for n in (1.0, 1.1, 1.2, 100.0)]
    policy = make_policy({"catch_up": "latest", "grace": "1s"})
    await one.apply(
        NewSchedule(name="s", target="noop", timetable=timetable(*ticks), policy=policy)
    )
    await fleet.move(2.25 * SECOND)
    _, missed = await one.claim()
    await two.repair()
    [job], [caught_up] = await two.claim()

    decisions = await two.do(two.runs.decide([caught_up], "hand"))
    job.run_at = decisions[job.id].at
    await two.hand.release(job)
    await two.do(two.runs.nudge([caught_up.schedule_id]))
    before = await two.hand.claim()
    skipped = await one.do(one.runs.decide(missed, "hand"))
    [after], runs = await two.claim()
    at_last = await two.do(two.runs.decide(runs, "hand"))

    assert decisions[job.id].action == "wait"
    assert before == []
    assert [decision.action for decision in skipped.values()] == ["skip", "skip"]
    assert after.id == job.id
    assert at_last[job.id].action == "run"


@on_both
@with_two
async def test_a_run_that_waited_and_was_lost_is_decided_on_again(fleet: Fleet) -> None:
    await fleet.first.apply(every_minute("s", overlap="buffer_all"))
    one, two = fleet.planners
    await fleet.move(MINUTE)
    [first], runs = await one.claim()
    await one.advance(runs)
    await fleet.move(MINUTE)
    [second], runs = await two.claim()
    wait = (await two.do(two.runs.decide(runs, "hand")))[second.id]
    # Two is lost before it could give the run back; one goes on.
    await asyncio.to_thread(one.store.heart().beat, one.hand.id, 999 * MINUTE)
    await fleet.move(99 * MINUTE)
    await one.store.rescue()
    [again] = [job for job in await one.hand.claim() if job.id == second.id]

    [run] = await one.gate([again])
    decision = (await one.do(one.runs.decide([run], "hand")))[again.id]

    assert wait.action == decision.action == "wait"
    assert (again.attempt, run.unbegun) == (2, True)
    assert first.id != again.id


@on_both
async def test_ten_record_the_same_runs_and_failures_count_once(fleet: Fleet) -> None:
    names = [f"s{number:02}" for number in range(20)]
    await fleet.first.apply(*(every_minute(name, pause_after=9) for name in names))
    await fleet.move(MINUTE)
    jobs, runs = await fleet.first.claim()
    await fleet.first.advance(runs)
    await fleet.first.hand.end(*(ended(job, AttemptOutcome.DEAD, error="broken") for job in jobs))
    order = count()

    async def record(planner: Planner) -> None:
        mine = [job.id for job in jobs]
        random.Random(next(order)).shuffle(mine)
        await planner.record_finished(mine)

    await fleet.together(record)

    assert {row[0] for row in fleet.query("select failures from {schedule}")} == {1}
    for name in names:
        [row] = [row for row in await fleet.ledger(name) if row.tick <= fleet.now]
        assert (row.status, row.succeeded, row.error) == (TickStatus.FIRED, False, "broken")


@on_both
async def test_a_pause_after_failures_is_made_once(fleet: Fleet) -> None:
    await fleet.first.apply(every_minute("s", pause_after=1))
    await fleet.move(MINUTE)
    jobs, runs = await fleet.first.claim()
    await fleet.first.advance(runs)
    await fleet.first.hand.end(ended(jobs[0], AttemptOutcome.DEAD, error="broken"))

    paused = await fleet.together(lambda planner: planner.record_finished([jobs[0].id]))

    assert sorted(paused) == [[]] * (PLANNERS - 1) + [["s"]]
    assert fleet.query("select count(*) from {audit} where action = 'schedule.pause'") == [(1,)]
    assert fleet.query("select count(*) from {due}") == [(0,)]


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(
            "postgres15",
            # Not strict: it takes a moment's bad luck.
        ),
        "sqlite",
    ],
    indirect=True,
)
async def test_everything_at_once_loses_and_doubles_no_tick(fleet: Fleet) -> None:
    """Workers and operators race on the same schedules while time goes on."""
    names = [f"s{number}" for number in range(6)]
    overlaps = ["allow", "skip", "buffer_one", "buffer_all", "skip", "allow"]
    policies = [{"overlap": overlap, "catch_up": "all"} for overlap in overlaps]
    await fleet.first.apply(*map(_with_policy, names, policies))
    seeds = count()
    stopped = asyncio.Event()

    async def work(planner: Planner) -> None:
        while not stopped.is_set():
            await planner.work()
            await planner.repair()
            jobs = await planner.do(planner.runs.find_unrecorded(), reads=True)
            await planner.record_finished(jobs)

    async def operate(planner: Planner) -> None:
        dice = random.Random(next(seeds))
        statements = planner.statements
        while not stopped.is_set():
            name = dice.choice(names)
            place = names.index(name)
            match dice.randrange(5):
                case 0:
                    await planner.pause(name)
                case 1 | 2:
                    await planner.resume(name)
                case 3:
                    at = fleet.now + dice.choice([0, 20, 70]) * SECOND
                    await planner.do(statements.reschedule(name, at, actor="bob"))
                case 4:
                    changed = _with_policy(name, policies[place], priority=dice.randrange(10))
                    await planner.apply(changed)

    async def pass_time() -> None:
        for _ in range(30):
            await fleet.move(20 * SECOND)
            await asyncio.sleep(0.05)
        stopped.set()

    async with asyncio.timeout(60):
        await asyncio.gather(
            pass_time(),
            *map(work, fleet.planners[:7]),
            *map(operate, fleet.planners[7:]),
        )
    for name in names:
        await fleet.first.resume(name)
    for _ in range(18):
        # What was moved comes, and what waits for another looks again.
        await fleet.move(5 * SECOND)
        await fleet.first.repair()
        while await fleet.first.work():
            pass

    ticks = [START + minute * MINUTE for minute in range(1, 12)]
    ran = Counter(
        dict(
            fleet.query(
                "select job_id, count(*) from {attempt} where outcome = 'completed' group by 1"
            )
        )
    )
    closed = {TickStatus.FIRED, TickStatus.CAUGHT_UP, TickStatus.SKIPPED}
    seen = 0
    for name in names:
        rows = [row for row in await fleet.ledger(name) if row.tick <= fleet.now]
        assert [row.tick for row in rows] == ticks, name
        for row in rows:
            assert row.status in closed, (name, row)
            expected = int(row.status is not TickStatus.SKIPPED)
            assert ran[row.job_id or 0] == expected, (name, row)
            seen += expected
    doubled = fleet.query(
        "select j.key from {job} as j join {attempt} as a on a.job_id = j.id"
        " where a.outcome = 'completed' group by j.key having count(*) > 1"
    )
    assert doubled == []
    assert 0 < seen <= ran.total()


def _with_policy(name: str, policy: dict[str, Any], *, priority: int = 5) -> NewSchedule:
    return msgspec.structs.replace(every_minute(name, **policy), priority=priority)


# Two at once, step by step


class Halfway:
    """Statements driven one by one, in a transaction that stays open until told."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], statements: Statements) -> None:
        self._connection = connection
        self._statements = statements
        self._next = next(statements)
        self.done = False
        self.steps = 0

    async def go(self, *, steps: int = 99) -> None:
        """Execute so many statements, or all."""
        try:
            for _ in range(steps):
                sql, parameters = self._next
                self.steps += 1
                cursor = await self._connection.execute(sql.encode(), parameters or None)
                rows = await cursor.fetchall() if cursor.description else []
                self._next = self._statements.send(rows)
        except StopIteration:
            self.done = True

    async def finish(self) -> None:
        if not self.done:
            await self.go()
        await self._connection.commit()


@pytest.fixture
async def connection(fleet: Fleet) -> AsyncIterator[psycopg.AsyncConnection[Any]]:
    """Of another process, that stops in the midst of a transaction."""
    async with await psycopg.AsyncConnection.connect(fleet.url) as connection:
        yield connection


async def waits(fleet: Fleet) -> bool:
    """Whether a transaction waits for another."""
    rows = await asyncio.to_thread(
        fleet.query,
        "select count(*) from pg_stat_activity"
        " where wait_event_type = 'Lock' and datname = current_database()",
    )
    return bool(rows[0][0])


@on_postgres
async def test_of_two_that_add_one_name_the_second_changes_it(
    fleet: Fleet, connection: psycopg.AsyncConnection[Any]
) -> None:
    """Both saw no such schedule. The later definition stands, and the audit tells both."""
    adding = fleet.first.statements.apply([every_minute("s")], actor="ann", prune=False)
    first = Halfway(connection, adding)
    await first.go()
    other = msgspec.structs.replace(every_minute("s"), timetable=timetable("@every 5m"))
    second = asyncio.create_task(fleet.first.apply(other, by="bob"))
    await until(lambda: waits(fleet))
    await first.finish()
    answer = await second
    [schedule] = await fleet.first.do(fleet.first.statements.find(["s"]), reads=True)
    events = fleet.query("select actor, action from {audit} order by id")
    ahead = [row.tick for row in await fleet.ledger("s")]

    assert answer == {"s": "changed"}
    assert schedule.timetable == other.timetable
    assert events == [("ann", "schedule.add"), ("bob", "schedule.change")]
    assert ahead == [START + 5 * MINUTE, START + 10 * MINUTE]


@pytest.mark.parametrize(
    "backend",
    [
        pytest.param(
            "postgres15",
        ),
        "sqlite",
    ],
    indirect=True,
)
async def test_ten_that_add_the_same_schedules_add_them_once(fleet: Fleet) -> None:
    """Ten workers of one deploy start at once."""
    names = ["a", "b", "c"]

    answers = await fleet.together(lambda planner: planner.apply(*map(every_minute, names)))

    for name in names:
        assert Counter(answer[name] for answer in answers) == {"added": 1, "same": 9}
    assert fleet.query("select count(*) from {audit}") == [(3,)]
    await fleet.check_armed(*names)


@on_both
async def test_ten_that_add_overlapping_sets_do_not_deadlock(fleet: Fleet) -> None:
    names = [f"s{number}" for number in range(10)]
    order = count()

    async def add(planner: Planner) -> None:
        shuffled = names[:]
        random.Random(next(order)).shuffle(shuffled)
        await planner.apply(*map(every_minute, shuffled[:7]))

    await fleet.together(add)
    stored = [row[0] for row in fleet.query("select name from {schedule} order by name")]

    assert stored == names
    await fleet.check_armed(*names)


@on_postgres
async def test_a_schedule_removed_while_it_is_applied_is_added_again(
    fleet: Fleet, connection: psycopg.AsyncConnection[Any]
) -> None:
    await fleet.first.apply(every_minute("s"))
    removing = Halfway(connection, fleet.first.statements.delete("s", actor="ann", reason=None))
    await removing.go()
    applying = asyncio.create_task(fleet.first.apply(every_minute("s")))
    await until(lambda: waits(fleet))
    await removing.finish()
    answer = await applying

    assert answer == {"s": "added"}
    await fleet.check_armed("s")


class Scene:
    """Two schedules, of each one run claimed and one ended that nobody has recorded."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._statements = fleet.first.statements
        self._workers = fleet.first.runs
        self._runs: list[ClaimedRun] = []
        self._ended: list[int] = []

    async def set(self) -> None:
        fleet = self._fleet
        tables = ("schedule", "due", "job", "job_key", "attempt")
        fleet.query(";".join(f"delete from {{{table}}}" for table in tables))
        new = [every_minute(name, overlap="allow", grace="1h") for name in ("a", "b")]
        await fleet.first.apply(*new)
        await fleet.move(MINUTE)
        jobs, runs = await fleet.first.claim()
        await fleet.first.advance(runs)
        await fleet.first.hand.finish(*jobs)
        self._ended = [job.id for job in jobs]
        await fleet.move(MINUTE)
        _, self._runs = await fleet.first.claim()
        assert len(self._runs) == len(self._ended) == 2

    # What may be done on it

    def advance(self) -> Statements:
        return self._workers.advance(self._runs, "w")

    def decide(self) -> Statements:
        return self._workers.decide(self._runs, "w")

    def record_finished(self) -> Statements:
        return self._workers.record_finished(self._ended[::-1])

    def pause(self) -> Statements:
        return self._statements.pause("b", actor="ann", reason="", until=None)

    def reschedule(self) -> Statements:
        return self._statements.reschedule("b", self._fleet.now + 90 * SECOND, actor="ann")

    def change(self) -> Statements:
        new = [msgspec.structs.replace(every_minute(name), priority=1) for name in ("b", "a")]
        return self._statements.apply(new, actor="ann", prune=False)

    def remove(self) -> Statements:
        return self._statements.delete("b", actor="ann", reason=None)

    def lock(self) -> Statements:
        """What locks both in one statement, seen in slow motion."""
        for name in ("a", "b"):
            yield "select 1 from duetime.schedule where name = %s for update", (name,)


ACTS = ("advance", "decide", "record_finished", "pause", "reschedule", "change", "remove", "lock")


@on_postgres
@with_two
@pytest.mark.parametrize(
    "first",
    [
        *ACTS,
    ],
)
async def test_whatever_comes_in_between_nothing_deadlocks(
    fleet: Fleet, connection: psycopg.AsyncConnection[Any], first: str
) -> None:
    """One stops after its first statements; then another begins; then the one goes on."""
    scene = Scene(fleet)
    trouble: dict[str, str] = {}
    for second in ACTS:
        for steps in (1, 2, 4):
            await scene.set()
            one = Halfway(connection, getattr(scene, first)())
            await one.go(steps=steps)
            acting = asyncio.create_task(fleet.planners[1].do(getattr(scene, second)()))
            await until_waits_or_done(fleet, acting)
            going = asyncio.create_task(one.finish())
            await asyncio.wait([going, acting], timeout=20)
            for error in (going.exception(), acting.exception()):
                if error is not None:
                    trouble[f"{first}, {steps} statements, {second}"] = repr(error)
            await connection.rollback()
            if one.done and one.steps <= steps:
                break

    assert trouble == {}


async def until_waits_or_done(fleet: Fleet, task: asyncio.Task[Any]) -> None:
    async def either() -> bool:
        return task.done() or await waits(fleet)

    await until(either)


# A planner that dies


class Died(Exception):
    pass


def dying(statements: Statements, *, after: int) -> Statements:
    """Statements of which the planner executes so many, and dies."""
    statement = next(statements)
    for _ in range(after):
        rows = yield statement
        try:
            statement = statements.send(rows)
        except StopIteration as end:
            return end.value
    raise Died


@on_both
@with_two
@pytest.mark.parametrize("act", ["advance", "repair", "pause", "change"])
async def test_a_planner_that_dies_midway_leaves_all_as_it_was(fleet: Fleet, act: str) -> None:
    await fleet.first.apply(every_minute("s"))
    await fleet.move(MINUTE + 2 * SECOND)
    _, runs = await fleet.first.claim()
    statements, workers = fleet.first.statements, fleet.first.runs

    def begin() -> Statements:
        changed = msgspec.structs.replace(every_minute("s"), priority=1)
        acts = {
            "advance": lambda: workers.advance(runs, "w"),
            "repair": lambda: workers.repair(),
            "pause": lambda: statements.pause("s", actor="ann", reason="", until=None),
            "change": lambda: statements.apply([changed], actor="ann", prune=False),
        }
        return acts[act]()

    before = snapshot(fleet)
    deaths = 0
    for after in count():
        try:
            await fleet.planners[1].do(dying(begin(), after=after))
        except Died:
            deaths += 1
        else:
            break
        assert snapshot(fleet) == before

    assert deaths >= 3
    assert snapshot(fleet) != before


def snapshot(fleet: Fleet) -> list[list[Any]]:
    return [sorted(fleet.query(f"select * from {{{table}}}"), key=repr) for table in TABLES]


@on_postgres
async def test_a_planner_whose_backend_is_killed_is_repaired_by_another(fleet: Fleet) -> None:
    await fleet.first.apply(every_minute("s"))
    await fleet.move(MINUTE)
    _, runs = await fleet.first.claim()
    async with await psycopg.AsyncConnection.connect(fleet.url) as connection:
        await connection.execute("select from duetime.schedule for update")
        advancing = asyncio.create_task(fleet.planners[1].advance(runs))
        await until(lambda: waits(fleet))
        fleet.query(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where wait_event_type = 'Lock' and datname = current_database()"
        )
        with pytest.raises(DatabaseUnreachable):
            await advancing
        await connection.rollback()
    armed = await fleet.ledger("s")
    await fleet.move(SECOND)
    repaired = await fleet.planners[2].repair()
    again = await fleet.planners[3].repair()

    assert [row.status for row in armed] == [TickStatus.ARMED] * 2
    assert (repaired, again) == (1, 0)
    rows = await fleet.ledger("s")
    assert [row.tick for row in rows] == [START + minute * MINUTE for minute in (1, 2, 3)]


# Workers that die, on real time


class Numbered:
    """An app with the workload's task `started`, whose runs are noted."""

    def __init__(self, url: str) -> None:
        self.app = Duetime(url, migrate=True, **SHORT)
        self.ran: list[tuple[str, datetime, int]] = []

        @self.app.task(name="started", retry=Constant("0s", max_attempts=5))
        async def started(ctx: Context, n: int, seconds: float = 0.0) -> None:
            assert ctx.schedule is not None
            assert ctx.tick is not None
            self.ran.append((ctx.schedule, ctx.tick, ctx.attempt))

        self.task = started


@pytest.fixture
async def numbered(backend: Backend) -> AsyncIterator[Numbered]:
    numbered = Numbered(backend.url)
    await numbered.app.now()
    yield numbered
    await numbered.app.close()


@on_both
async def test_a_worker_killed_right_after_its_claim_costs_no_tick(
    numbered: Numbered, backend: Backend
) -> None:
    """kill -9: rescued, one row of the ledger, and run once more by another."""
    app = numbered.app
    with worker_process(backend.url, **SHORT) as process:
        now = await app.now()
        ticks = [now + n * SECOND for n in (0.6, 2.5, 2.8)]
        args = {"n": 1, "seconds": 60}
        await app.schedules.put("s", "started", *ticks, args=args, overlap="allow")
        assert process.stdout is not None
        line = await asyncio.to_thread(process.stdout.readline)
        process.kill()
        async with app.worker(name="another"):
            await until_true(lambda: len(numbered.ran) == 3)
    rows = (await app.schedules["s"].history())[::-1]
    jobs = [await app.jobs.get(row.job_id or 0) for row in rows]

    assert line.startswith("started 1 1")
    assert numbered.ran == [("s", ticks[0], 2), ("s", ticks[1], 1), ("s", ticks[2], 1)]
    assert [row.tick for row in rows] == ticks
    assert [row.status for row in rows] == [TickStatus.FIRED] * 3
    assert all(row.succeeded and row.claimed_by == "another" for row in rows)
    assert [attempt.outcome for attempt in jobs[0].history] == ["lost", "completed"]


@on_both
async def test_the_first_worker_after_an_outage_catches_up_as_the_policy_says(
    numbered: Numbered,
) -> None:
    app = numbered.app
    now = await app.now()
    ticks = [now + n * SECOND for n in (0.6, 0.7, 0.8, 0.9)]
    names: tuple[CatchUp, ...] = ("skip", "latest", "all")
    later = now + timedelta(days=1)
    await app.schedules.apply(
        app.schedules.define(
            name, numbered.task, *ticks, later, args={"n": 1}, catch_up=name, grace="1s"
        )
        for name in names
    )
    await until(lambda: passed(app, ticks[3] + 1.2 * SECOND))
    async with app.worker():
        await until_true(lambda: len(numbered.ran) == 5)
        await until(lambda: all_planned(app, names, later))
    found = {
        name: [row.status.value for row in reversed(await app.schedules[name].history())]
        for name in names
    }

    assert found == {
        "skip": ["skipped"] * 4 + ["armed"],
        "latest": ["coalesced"] * 3 + ["caught_up", "armed"],
        "all": ["caught_up"] * 4 + ["armed"],
    }
    ran = {name: [tick for other, tick, _ in numbered.ran if other == name] for name in names}
    assert ran == {"skip": [], "latest": ticks[3:], "all": ticks}, "in order"


async def all_planned(app: Duetime, names: Sequence[str], at: datetime) -> bool:
    return all([(await app.schedules[name].get()).next_run_at == at for name in names])


async def passed(app: Duetime, moment: datetime) -> bool:
    return await app.now() > moment


@on_both
async def test_a_run_that_ended_unrecorded_is_recorded_by_the_next_worker(
    numbered: Numbered, backend: Backend
) -> None:
    """Its worker died between the end of the job and the ledger."""
    app = numbered.app
    tick = await app.now() + SECOND / 2
    await app.schedules.put("s", numbered.task, tick, args={"n": 1})
    await until(lambda: passed(app, tick))
    hand = await Hand.register(await app.store(), ["default"], MINUTE, "gone")
    [job] = await hand.claim()
    await hand.end(ended(job, AttemptOutcome.DEAD, error="broken"))
    [before] = await app.schedules["s"].history()

    async def recorded() -> list[TickInfo]:
        return [row for row in await app.schedules["s"].history() if row.finished_at]

    async with app.worker():
        [row] = await until(recorded)

    assert (before.status, before.finished_at) == (TickStatus.ARMED, None)
    assert (row.status, row.succeeded, row.error) == (TickStatus.FIRED, False, "broken")
    assert row.claimed_by == "gone"
    assert (await app.schedules.get("s")).failures == 1
    assert numbered.ran == []


@on_postgres
async def test_a_bulk_action_locks_schedules_before_their_runs(
    numbered: Numbered, backend: Backend
) -> None:
    """Whoever changes a schedule holds its lock, and then locks the jobs of its runs."""
    app = numbered.app
    await app.schedules.put("s", numbered.task, "@yearly", args={"n": 1})
    async with app.worker(), await psycopg.AsyncConnection.connect(backend.url) as connection:
        await connection.execute("select from duetime.schedule for update")
        action = await app.jobs.reschedule_all(START, task="started")
        await until(lambda: waiting.waits(backend.url))
        await connection.execute("select from duetime.job where task = 'started' for update nowait")
        await connection.commit()
        progress = await action.result("30s")

    assert (progress.done, progress.skipped) == (2, 0)
