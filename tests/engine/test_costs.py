"""What the hot path and arming cost: a change that makes them slower fails here, also on a slow or
busy machine, since nothing is timed.

`make bench` measures times. If a cost grew for a good reason, change its bound.
"""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from itertools import count
from pathlib import Path

import psycopg
import pytest

from duetime import Duetime, Flow, Reminder, RulesLike
from tests.conftest import fresh_database
from tests.costs import Costs, Meter, postgres_counted, python_counted, sqlite_counted
from tests.postgres_binaries import find_system
from tests.servers import PostgresServer
from tests.waiting import until_true

DAY = timedelta(days=1)
numbers = count()


class Operated:
    """An application with a task, a flow and reminders, whose operations are counted."""

    def __init__(self, url: str) -> None:
        self.app = Duetime(url)
        self.received: list[object] = []
        """What its handlers were called with."""
        self.note = self.app.task(name="note")(self._note)
        self.steps = self.app.flow(name="steps")(self._steps)
        self.app.on_reminder(self._remind)

    async def _note(self, number: int, text: str) -> None:
        self.received.append(number)

    async def _remind(self, reminder: Reminder) -> None:
        self.received.append(reminder)

    async def _steps(self, flow: Flow, n: int) -> None:
        for number in range(n):
            await flow.step(self._step, number)

    async def _step(self, number: int) -> None:
        self.received.append(number)

    async def enqueue_many(self, n: int) -> None:
        await self.app.enqueue_many(self.note.job(number=i, text="x" * 100) for i in range(n))

    async def enqueue_hundreds(self, n: int) -> None:
        for _ in range(n // 100):
            await self.enqueue_many(100)

    async def enqueue_one_by_one(self, n: int) -> None:
        for i in range(n):
            await self.note.enqueue(number=i, text="x" * 100)

    async def start_flow(self, n: int) -> None:
        await self.steps.start(n=n)

    async def put_subjects(self, n: int) -> None:
        await self._put(n, 3 * DAY, ["-1d", "-1h"])

    async def put_due_subjects(self, n: int) -> None:
        await self._put(n, DAY, [{"rule": "-1d", "past": "send_now"}])

    async def _put(self, n: int, due: timedelta, remind: RulesLike) -> None:
        app = self.app
        due_at = await app.now() + due
        await app.subjects.put_many(
            [
                app.subjects.define(f"subject:{next(numbers)}", due=due_at, remind=remind)
                for _ in range(n)
            ]
        )

    async def track_rows(self, n: int) -> None:
        self._run_sql(
            "drop table if exists game",
            "create table game (id bigint primary key, starts timestamptz)",
            f"insert into game select i, now() + '9 days' from generate_series(1, {n}) as i",
        )
        await self.app.tables.put("game", id="id", due="starts", remind=["-1d"])

    async def move_rows(self, n: int) -> None:
        self._run_sql("update game set starts = starts + interval '1 hour'")

    def _run_sql(self, *statements: str) -> None:
        with psycopg.connect(self.app.settings.database, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    async def work(self, n: int) -> None:
        """Run a worker until its handlers were called so many times."""
        async with self.app.worker():
            await until_true(lambda: len(self.received) >= n)


Operation = Callable[[Operated, int], Awaitable[None]]


@dataclass(frozen=True)
class Case:
    """An operation with few items and with many."""

    operate: Operation
    few: int
    many: int
    postgres: Costs
    """What each item may cost: a fifth more than was measured, or more if it depends on timing."""
    sqlite: Costs = field(default_factory=dict)
    prepare: Operation | None = None
    """Makes what it works on; that is not counted."""


CASES = {
    "enqueue many": Case(
        Operated.enqueue_many, 1000, 2000,
        postgres={"python": 290, "commits": 0.1, "wal": 540, "buffers": 8},
        sqlite={"python": 235, "steps": 130},
    ),
    "enqueue hundreds": Case(
        Operated.enqueue_hundreds, 200, 600,
        postgres={"python": 300, "commits": 0.1, "wal": 660, "buffers": 10},
        sqlite={"python": 265, "steps": 138},
    ),
    "enqueue one by one": Case(
        Operated.enqueue_one_by_one, 50, 150,
        postgres={"python": 2020, "commits": 1.2, "wal": 720, "buffers": 10},
        sqlite={"python": 2370, "steps": 252},
    ),
    "work jobs off": Case(
        Operated.work, 500, 1500, prepare=Operated.enqueue_many,
        postgres={"python": 860, "commits": 0.1, "wal": 420, "buffers": 25},
        sqlite={"python": 900, "steps": 215},
    ),
    "put subjects with two rules": Case(
        Operated.put_subjects, 100, 400,
        postgres={"python": 800, "commits": 0.1, "wal": 4000, "buffers": 80},
        sqlite={"python": 3900, "steps": 1250},
    ),
    "send reminders": Case(
        Operated.work, 50, 250, prepare=Operated.put_due_subjects,
        postgres={"python": 4400, "commits": 0.5, "wal": 2300, "buffers": 110},
        sqlite={"python": 5000, "steps": 1000},
    ),
    "run the steps of a flow": Case(
        Operated.work, 50, 150, prepare=Operated.start_flow,
        postgres={"python": 2300, "commits": 1.3, "wal": 420, "buffers": 14},
        sqlite={"python": 4000, "steps": 700},
    ),
    # On SQLite subjects are armed as above, whoever wrote them.
    "move tracked rows": Case(
        Operated.move_rows, 200, 800, prepare=Operated.track_rows,
        postgres={"commits": 0.1, "wal": 4300, "buffers": 105},
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """Used by nobody else, and without autovacuum: all that it does is counted."""
    with PostgresServer(find_system(), settings={"autovacuum": "off"}) as server:
        yield server


@pytest.mark.parametrize("name", CASES)
async def test_cost_on_postgres(server: PostgresServer, name: str) -> None:
    with fresh_database(server, tables=True) as url:
        with psycopg.connect(url, autocommit=True) as watcher:
            found = await cost_of_each(url, CASES[name], partial(postgres_counted, watcher))

    assert describe_excess(found, CASES[name].postgres) == {}


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.sqlite])
async def test_cost_on_sqlite(
    sqlite_tables: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copy(sqlite_tables, tmp_path / "costs.db")
    url = f"sqlite:///{tmp_path}/costs.db"
    found = await cost_of_each(url, CASES[name], partial(sqlite_counted, monkeypatch))

    assert describe_excess(found, CASES[name].sqlite) == {}


async def cost_of_each(url: str, case: Case, counted: Meter) -> Costs:
    """Return what one more item costs: a start and a stop do not count. The best of three, as a
    worker on a busy machine claims more often."""
    await cost_of(url, case, case.few, counted)  # What is loaded and prepared once does not count.
    each: list[Costs] = []
    for _ in range(3):
        few = await cost_of(url, case, case.few, counted)
        many = await cost_of(url, case, case.many, counted)
        more = case.many - case.few
        each.append({name: (many[name] - few[name]) / more for name in many})
    return {name: min(one[name] for one in each) for name in each[0]}


async def cost_of(url: str, case: Case, n: int, counted: Meter) -> Costs:
    if case.prepare is not None:
        prepared = Operated(url)
        await case.prepare(prepared, n)
        await prepared.app.close()
    operated, costs = Operated(url), Costs()
    async with counted(costs):
        with python_counted(costs):
            await case.operate(operated, n)
            await operated.app.close()
    return costs


def describe_excess(found: Costs, most: Costs) -> dict[str, str]:
    return {
        name: f"{found[name]:.1f}, and may be {bound:g}"
        for name, bound in most.items()
        if found[name] > bound
    }
