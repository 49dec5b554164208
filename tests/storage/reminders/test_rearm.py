"""PostgreSQL arms in SQL what Python arms: the same reminders, jobs and reasons."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, time, timedelta
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from duetime import Duetime
from duetime.domain.reminders.reminder import Subject
from duetime.domain.reminders.rule import Rule, check_rule
from duetime.domain.schedules.cron import parse_zone, to_instant
from duetime.errors import InvalidInput
from duetime.settings import Settings
from duetime.storage import transaction
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.dialect import PostgresDialect
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.reminders.rows import ScopeInfo
from duetime.storage.store import Statements
from duetime.wiring import make_migrator, make_store
from tests.waiting import until

ZONES = (
    "UTC", "America/New_York", "Europe/Berlin", "Australia/Lord_Howe", "Asia/Kathmandu",
    "Pacific/Apia", "Africa/Casablanca", "Antarctica/Troll",
)  # fmt: skip
PEOPLE = ("ann", "bob", "eve")
# The clocks of most zones change within days of these.
NEAR = [
    datetime(2026, 3, 8, 6, tzinfo=UTC),
    datetime(2026, 3, 29, 1, tzinfo=UTC),
    datetime(2026, 10, 25, 1, tzinfo=UTC),
    datetime(2026, 11, 1, 6, tzinfo=UTC),
    datetime(2026, 4, 4, 15, tzinfo=UTC),
    datetime(2011, 12, 30, 10, tzinfo=UTC),
]

moments = st.builds(
    lambda near, minutes, us: near + timedelta(minutes=minutes, microseconds=us),
    st.sampled_from(NEAR),
    st.integers(-3 * 24 * 60, 3 * 24 * 60),
    st.sampled_from([0, 0, 0, 1, 250_000]),
)
spans = st.sampled_from([timedelta(0), *(timedelta(minutes=m) for m in (1, 30, 60, 90, 1440))])


@st.composite
def rules(draw: st.DrawFn) -> Rule:
    shape = draw(st.sampled_from(["offset", "wall", "repeat", "at"]))
    fields: dict[str, Any] = {}
    if shape == "offset":
        fields["offset"] = draw(st.sampled_from([-1, 1])) * draw(spans)
    elif shape == "wall":
        fields["offset"] = timedelta(days=draw(st.integers(-3, 2)))
        fields["wall"] = time(draw(st.integers(0, 3)), draw(st.sampled_from([0, 15, 30, 59])))
        fields["zone"] = draw(st.sampled_from(["subject", "recipient"]))
    elif shape == "repeat":
        fields["every"] = timedelta(minutes=draw(st.sampled_from([45, 60, 1440])))
        fields["within"] = timedelta(minutes=draw(st.sampled_from([60, 100, 1440, 2881])))
    else:
        fields["at"] = draw(moments)
    fields["past"] = draw(st.sampled_from(["skip", "send_now"]))
    fields["expires"] = draw(st.sampled_from([None, "at_due", timedelta(hours=2)]))
    fields["urgent"] = draw(st.booleans())
    if draw(st.integers(0, 4)) == 0:
        fields["channels"] = ("mail",)
    if fields.get("zone") != "recipient" and draw(st.integers(0, 5)) == 0:
        fields["escalate"] = timedelta(minutes=10)
    try:
        return check_rule(Rule(**fields))
    except InvalidInput:
        return check_rule(Rule(**fields | {"expires": None}))


rule_lists = st.none() | st.lists(rules(), max_size=3).map(tuple)
scope_names = st.sampled_from(["guild", "channel", "table"])
PARENTS = {"guild": None, "channel": "guild", "table": "channel"}


@dataclass
class Change:
    """Something that is done to both halves."""

    what: str
    at: datetime
    name: str
    values: dict[str, Any] = field(default_factory=dict)


scope_changes = st.builds(
    lambda at, name, rules, locked: Change("scope", at, name, {"rules": rules, "locked": locked}),
    moments, scope_names, rule_lists, st.booleans(),
)  # fmt: skip
puts = st.builds(
    lambda at, name, **values: Change("put", at, name, values),
    moments,
    st.sampled_from(["one", "two"]),
    due_at=st.none() | moments,
    scope=st.none() | scope_names,
    tz=st.sampled_from(ZONES),
    rules=rule_lists,
    recipients=st.lists(st.sampled_from(PEOPLE), unique=True, max_size=3).map(tuple),
)
closes = st.builds(
    lambda at, name, delete: Change("close", at, name, {"delete": delete}),
    moments, st.sampled_from(["one", "two"]), st.booleans(),
)  # fmt: skip
ends = st.builds(
    lambda at, status: Change("end", at, "", {"status": status}),
    moments,
    st.sampled_from(["sent", "failed"]),
)
holds = st.builds(lambda at: Change("hold", at, ""), moments)
varied = st.builds(
    lambda at, name, **values: Change("vary", at, name, values),
    moments,
    st.sampled_from(["one", "two"]),
    past=st.sampled_from(["skip", "send_now"]),
    expires=st.sampled_from([None, "at_due", timedelta(hours=2), timedelta(days=3)]),
    urgent=st.booleans(),
)
plans = st.lists(
    st.one_of(puts, puts, puts, scope_changes, closes, ends, holds, varied, varied),
    min_size=1,
    max_size=8,
)


# Of three reminders, one is held and one is late when their rules get other options.
ONE_WAITS = [
    Change("put", NEAR[0], "one", {
        "due_at": NEAR[0] + timedelta(hours=4), "scope": None, "tz": "UTC", "recipients": ("ann",),
        "rules": tuple(Rule(offset=timedelta(hours=-hours), expires="at_due")
                       for hours in (1, 2, 3)),
    }),
    Change("hold", NEAR[0] + timedelta(hours=1), ""),
    Change("vary", NEAR[0] + timedelta(hours=2, minutes=30), "one",
           {"past": "skip", "expires": timedelta(days=3), "urgent": True}),
]  # fmt: skip


class PythonAlone(PostgresDialect):
    arms = False


class Half:
    """One of two worlds in the same database: its names begin with its own letter."""

    def __init__(self, letter: str, statements: ReminderStatements, connection: Any) -> None:
        self.letter = letter
        self.statements = statements
        self._connection = connection
        self._put: dict[str, dict[str, Any]] = {}

    def do(self, change: Change) -> Any:
        name = f"{self.letter}:{change.name}"
        if change.what == "scope":
            return self._run(self._scope(change.name, **change.values))
        if change.what == "close":
            return self._run(self.statements.close(name, actor="test", **change.values))
        if change.what == "end":
            return self._end(change.values["status"])
        if change.what == "hold":
            return self._hold(change.at)
        if change.what == "vary":
            if change.name not in self._put:
                return None
            before = self._put[change.name]
            values = before | {"rules": _with_options(before["rules"], change.values)}
        else:
            values = dict(change.values)
        self._put[change.name] = dict(values)
        if values["scope"] is not None:
            values["scope"] = f"{self.letter}:{values['scope']}"
        subject = Subject(ref=name, status="open", data={}, **values)
        return self._run(self.statements.put([subject], actor="test"))

    def _scope(self, name: str, rules: Any, locked: bool) -> Statements:
        parent = PARENTS[name]
        info = ScopeInfo(
            f"{self.letter}:{name}", parent and f"{self.letter}:{parent}", rules, locked
        )
        return self.statements.put_scope(info, actor="test")

    def _end(self, status: str) -> None:
        """The first armed reminder is sent, or fails: its job is gone."""
        row = self._first_armed()
        if row is not None:
            self._connection.execute(
                "update duetime.reminder set status = %s where id = %s", [status, row[0]]
            )
            self._connection.execute("delete from duetime.due where job_id = %s", [row[1]])

    def _hold(self, at: datetime) -> None:
        """The first armed reminder waits for quiet hours."""
        row = self._first_armed()
        if row is not None:
            self._connection.execute(
                "update duetime.reminder set held = 'quiet' where id = %s", [row[0]]
            )
            self._connection.execute(
                "update duetime.due set run_at = %s where job_id = %s",
                [at + timedelta(days=2), row[1]],
            )

    def _first_armed(self) -> Any:
        return self._connection.execute(
            "select r.id, r.job_id from duetime.reminder as r"
            " join duetime.subject as s on s.id = r.subject_id"
            " join duetime.rule as u on u.id = r.rule"
            " where s.ref like %s and r.status = 'armed'"
            " order by s.ref, r.due_at, r.time, u.name, r.recipient limit 1",
            [f"{self.letter}:%"],
        ).fetchone()

    def forget(self) -> None:
        """What was put is rolled back."""
        self._put.clear()

    def _run(self, statements: Statements) -> Any:
        return transaction.run(self._connection, statements, placeholder="%s")

    def state(self) -> list[tuple[Any, ...]]:
        """Every reminder, with its job, what waits of it and how it ended; and the marks."""
        found = self._connection.execute(
            "select substr(s.ref, 3), s.revision, s.status, s.rearm_at, r.due_at, u.name,"
            " u.body::jsonb, r.time, r.recipient, r.revision, r.run_at, r.status, r.reason,"
            " r.ended_at, r.held, r.job_id is not null, j.task, j.queue, j.priority, j.expires_at,"
            " j.max_attempts, r.key is null, d.run_at, d.queue,"
            " d.priority, a.outcome, a.error"
            " from duetime.subject as s left join duetime.reminder as r on r.subject_id = s.id"
            " left join duetime.rule as u on u.id = r.rule"
            " left join duetime.job as j on j.id = r.job_id"
            " left join duetime.due as d on d.job_id = r.job_id"
            " left join duetime.attempt as a on a.job_id = r.job_id"
            " where s.ref like %s"
            " order by 1, r.due_at, r.time, u.name, r.recipient, r.revision",
            [f"{self.letter}:%"],
        ).fetchall()
        return list(found)


@pytest.fixture(scope="module")
def database(postgres15: Any) -> Iterator[str]:
    name = postgres15.create_database()
    yield postgres15.dsn(name)
    postgres15.drop_database(name)


@pytest.fixture(scope="module")
def halves(database: str) -> Iterator[tuple[psycopg.Connection[Any], Half, Half]]:
    config = Settings(database=database)
    upgrade(make_migrator(config))
    store = make_store(config)

    async def stand_still() -> None:
        await store.open()
        await store.drive_clock(NEAR[0])
        await store.close()

    asyncio.run(stand_still())
    dialect: Any = store.dialect
    with psycopg.connect(database) as connection:
        for number, ref in enumerate(PEOPLE[:2]):
            connection.execute(
                "insert into duetime.recipient (ref, tz) values (%s, %s)",
                [ref, ("Australia/Lord_Howe", "America/New_York")[number]],
            )
        connection.commit()
        in_sql = Half("a", ReminderStatements(dialect), connection)
        in_python = Half("b", ReminderStatements(PythonAlone(dialect._sql)), connection)
        yield connection, in_sql, in_python


@pytest.mark.timeout(600)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(first=rule_lists, changes=plans)
@example(first=None, changes=ONE_WAITS)
def test_sql_arms_what_python_arms(
    halves: tuple[psycopg.Connection[Any], Half, Half], first: Any, changes: list[Change]
) -> None:
    connection, in_sql, in_python = halves
    try:
        tree = [
            Change("scope", NEAR[0], name, {"rules": first if name == "guild" else None,
                                            "locked": False})
            for name in PARENTS
        ]  # fmt: skip
        for change in [*tree, *changes]:
            connection.execute("update duetime.driven_clock set moment = %s", [change.at])

            answers = in_sql.do(change), in_python.do(change)

            if isinstance(answers[0], dict):
                assert list(answers[0].values()) == list(answers[1].values())
            else:
                assert answers[0] == answers[1]
            assert in_sql.state() == in_python.state(), change
    finally:
        connection.rollback()
        in_sql.forget()
        in_python.forget()


def _with_options(rules: Any, options: dict[str, Any]) -> Any:
    """The same rules with other options, where they may have them."""
    if rules is None:
        return None
    found = []
    for rule in rules:
        try:
            found.append(check_rule(msgspec.structs.replace(rule, **options)))
        except InvalidInput:
            found.append(msgspec.structs.replace(rule, **options | {"expires": None}))
    return tuple(found)


@settings(max_examples=300, deadline=None,
          suppress_health_check=[HealthCheck.function_scoped_fixture])  # fmt: skip
@given(near=moments, minutes=st.integers(-600, 600), zone=st.sampled_from(ZONES))
@example(near=datetime(2026, 10, 25, 2, 30, tzinfo=UTC), minutes=0, zone="Europe/Berlin")  # twice
@example(near=datetime(2026, 3, 29, 2, 30, tzinfo=UTC), minutes=0, zone="Europe/Berlin")  # never
def test_sql_reads_wall_times_as_python_does(
    halves: tuple[psycopg.Connection[Any], Half, Half], near: datetime, minutes: int, zone: str
) -> None:
    connection, _, _ = halves
    wall = (near + timedelta(minutes=minutes)).replace(tzinfo=None)

    [(instant,)] = connection.execute(
        "select duetime._to_instant(%s::timestamp, %s)", [wall, zone]
    ).fetchall()

    assert instant == to_instant(wall, parse_zone(zone))


async def test_a_zone_that_the_server_does_not_know_is_left_to_a_worker(pg_url: str) -> None:
    app = Duetime(pg_url, migrate=True)
    due = datetime.now(UTC).replace(hour=12) + timedelta(days=20)
    await app.subjects.put("rent", due=due, remind=["-1d at 09:00"])
    with psycopg.connect(pg_url) as connection:
        # As if Python knew a zone that came after the server's.
        connection.execute(
            "create or replace function duetime._knows_zone(tz text) returns boolean"
            " language sql as 'select false'"
        )

    await app.subjects.put("rent", due=due + timedelta(days=1), remind=["-1d at 09:00"])
    before = [(r.status, r.stale) for r in await app.reminders.list(subject="rent")]
    async with app.worker():
        await until(lambda: _armed_days(app, due))
    found = await app.reminders.list(subject="rent")
    await app.close()

    assert before == [("armed", True)]
    assert [(r.status, (r.due_at - due).days, r.stale) for r in found] == [
        ("superseded", 0, False),
        ("armed", 1, False),
    ]


async def _armed_days(app: Duetime, due: datetime) -> bool:
    found = await app.reminders.list(subject="rent", status="armed")
    return [reminder.due_at for reminder in found] == [due + timedelta(days=1)]


@pytest.mark.parametrize("subjects", [1, 150], ids=["one", "many"])
async def test_a_subject_with_a_long_history_costs_the_others_nothing(
    pg_url: str, subjects: int
) -> None:
    """The planner takes it for the rule that a subject has so many reminders: it must not read
    them all."""
    app = Duetime(pg_url, migrate=True)
    due = datetime.now(UTC) + timedelta(days=20)
    await app.subjects.put("old", due=due, remind=["-1d"])
    await app.subjects.put_many(
        app.subjects.define(f"s{number}", due=due, remind=["-1d"]) for number in range(subjects)
    )
    await app.close()
    with psycopg.connect(pg_url, autocommit=True) as connection:
        connection.execute(
            "insert into duetime.reminder (id, key, subject_id, due_at, rule, time, recipient,"
            " revision, status, created_at, ended_at)"
            " select 1000000 + n, md5(n::text)::uuid, r.subject_id,"
            " r.due_at - n * interval '1 second', r.rule, r.time - n * interval '1 second', '', 1,"
            " 'sent', now(), now()"
            " from duetime.reminder as r join duetime.subject as s on s.id = r.subject_id"
            " cross join generate_series(1, 200000) as n where s.ref = 'old'"
        )
        connection.execute("vacuum analyze")
        row = connection.execute(
            "explain (analyze, buffers, format json) select duetime.rearm(array("
            " select id from duetime.subject where ref <> 'old'))"
        ).fetchone()
        assert row is not None
        plan = row[0][0]["Plan"]
        pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]

    assert pages < 3000, pages
