"""Reminders on real workers in real time: subjects that change while their reminders fall due."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sqlite3
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from datetime import UTC, datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest

from duetime import Constant, Context, Duetime, Reminder, Sent
from duetime.domain.reminders.rule_text import parse_rule
from duetime.errors import StorageError, SubjectNotFound
from duetime.reminders.rearm import rearm_stale
from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.reminders.rows import ScopeInfo
from duetime.storage.reminders.sends import SentReminder
from duetime.storage.sqlite.migrator import SqliteMigrator
from duetime.storage.sqlite.store import SqliteStore
from duetime.storage.store import Statements
from tests.conftest import Backend, fresh_database, query
from tests.log_events import events_of
from tests.servers import PostgresServer
from tests.waiting import until, until_true

WORKERS = 4
CLIENTS = 8
HOUR = timedelta(hours=1)
MILLISECOND = timedelta(milliseconds=1)
EVEN_LATE = {"rule": "0s", "past": "send_now"}
"""On a busy machine its time may have passed when it is put; then it would be skipped."""
SHORT: dict[str, Any] = {"lease": "20s", "heartbeat": "1s", "rescue_every": "500ms", "grace": "5s"}
TABLES = ("scope", "subject", "reminder", "delivery", "job", "due", "attempt", "audit")

on_both = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("backend", ["postgres15"], indirect=True)


def counts(backend: Backend) -> dict[str, int]:
    each = ", ".join(f"(select count(*) from duetime.{name})" for name in TABLES)
    return dict(zip(TABLES, query(backend, f"select {each}")[0], strict=True))


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    if backend.is_postgres:
        # A deadlock costs a second by default; the tests count them.
        name = query(backend, "select current_database()")[0][0]
        query(backend, f"alter database {name} set deadlock_timeout = '20ms'")
    app = Duetime(backend.url, migrate=True, **SHORT)
    await app.store()
    yield app
    await app.close()


class Delivery(NamedTuple):
    key: str
    subject: str
    due_at: datetime
    rule: str
    claimed: float
    sent: float
    early: bool


class Ledger:
    """The outside world: what came out, in the order in which it did."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.pause = 0.0

    def listen(self, app: Duetime, **options: Any) -> None:
        @app.on_reminder(**options)
        async def send(reminder: Reminder, ctx: Context) -> Sent:
            assert reminder.run_at is not None
            assert ctx._claimed is not None
            early = datetime.now(UTC) < reminder.run_at
            await asyncio.sleep(random.uniform(0, self.pause))
            self.deliveries.append(
                Delivery(ctx.key, reminder.subject, reminder.due_at, reminder.rule.text,
                         ctx._claimed, time.monotonic(), early)
            )  # fmt: skip
            await asyncio.sleep(random.uniform(0, self.pause))
            return Sent(f"ext-{reminder.id}")

    @property
    def keys(self) -> list[str]:
        return [delivery.key for delivery in self.deliveries]


@asynccontextmanager
async def fleet(backend: Backend, ledger: Ledger) -> AsyncIterator[None]:
    """Workers, each with an application, a store and connections of its own."""
    async with AsyncExitStack() as stack:
        for _ in range(WORKERS):
            app = Duetime(backend.url, **SHORT)
            stack.push_async_callback(app.close)
            ledger.listen(app)
            await stack.enter_async_context(app.worker(concurrency=10))
        yield


# 1. Random changes under running workers


class State(NamedTuple):
    """What was asked for, from when (asked, answered) on."""

    asked: float
    answered: float
    value: Any


class History:
    """The truth over time. Between `asked` and `answered` both the old and the new may hold."""

    def __init__(self, value: Any) -> None:
        self.states = [State(0.0, 0.0, value)]

    @property
    def value(self) -> Any:
        return self.states[-1].value

    async def change(self, value: Any, call: Awaitable[Any]) -> None:
        asked = time.monotonic()
        await call
        self.states.append(State(asked, time.monotonic(), value))

    def between(self, start: float, end: float) -> list[Any]:
        """Everything that may have held at some moment of the span."""
        ends = [state.answered for state in self.states[1:]] + [float("inf")]
        return [
            state.value
            for state, replaced in zip(self.states, ends, strict=True)
            if state.asked <= end and replaced >= start
        ]

    def spans(self) -> Iterator[tuple[float, float, Any]]:
        """From when to when each surely held."""
        ends = [state.asked for state in self.states[1:]] + [float("inf")]
        for state, end in zip(self.states, ends, strict=True):
            yield state.answered, end, state.value


class Churn:
    """Clients that change subjects of their own, and one that changes the rules of their scope."""

    def __init__(self, app: Duetime, operations: int, seed: int) -> None:
        self.app = app
        self.left = operations
        self.random = random.Random(seed)
        self.subjects: dict[str, History] = {}
        self.rules = History(())
        self.deadlocks = 0

    async def run(self) -> None:
        await self._set_rules(("-100ms", "0s"))
        await asyncio.gather(*(self._client(n) for n in range(CLIENTS)), self._rule_client())

    async def _retried(self, make: Callable[[], Awaitable[Any]]) -> None:
        """A deadlock changes nothing, and has a test of its own."""
        while True:
            try:
                await make()
                return
            except StorageError as error:
                if "deadlock" not in str(error):
                    raise
                self.deadlocks += 1

    async def _set_rules(self, rules: tuple[str, ...]) -> None:
        call = self._retried(lambda: self.app.scopes.put("guild", remind=list(rules)))
        await self.rules.change(rules, call)

    async def _rule_client(self) -> None:
        for turn in count(1):
            if self.left <= 0:
                return
            self.left -= 1
            # No offset comes back: that has a test of its own.
            offsets = (f"-{300 - turn}ms", f"-{100 + turn / 1000}ms", f"+{turn}ms")
            rules = self.random.sample(offsets, self.random.randint(1, 3))
            await self._set_rules(tuple(parse_rule(rule).text for rule in rules))
            await asyncio.sleep(self.random.uniform(0.05, 0.15))

    async def _client(self, client: int) -> None:
        refs = [f"subject:{client}:{n}" for n in range(5)]
        before: dict[str, datetime] = {}
        while self.left > 0:
            self.left -= 1
            ref = self.random.choice(refs)
            history = self.subjects.setdefault(ref, History(None))
            verb = self.random.choice(("move", "move", "move", "complete", "delete", "open"))
            if history.value is None or verb == "move":
                ahead = self.random.uniform(50, 800) * MILLISECOND
                due = datetime.now(UTC) + ahead
                if verb == "open" and ref in before:
                    due = before[ref]  # Opened again as it was.
                before[ref] = due
                await self._put(ref, due)
            elif verb != "open":
                call = self._retried(lambda ref=ref, verb=verb: self._close(ref, verb))  # type: ignore[misc]
                await history.change(None, call)
            await asyncio.sleep(self.random.uniform(0, 0.04))

    async def _put(self, ref: str, due: datetime) -> None:
        call = self._retried(lambda: self.app.subjects.put(ref, scope="guild", due=due))
        await self.subjects[ref].change(due, call)

    async def _close(self, ref: str, verb: str) -> None:
        try:
            await getattr(self.app.subjects, verb)(ref)
        except SubjectNotFound:
            raise AssertionError(f"{ref} was put, and is not there to {verb}") from None


@on_both
async def test_random_changes_under_four_workers(backend: Backend, app: Duetime) -> None:
    """No reminder is stale, sent twice or lost; the tables agree with one another."""
    ledger = Ledger()
    ledger.pause = 0.004
    churn = Churn(app, 1000 if backend.is_postgres else 500, seed=7)
    async with fleet(backend, ledger):
        began = time.monotonic()
        await churn.run()
        took = time.monotonic() - began
        await until(lambda: settled(backend))
    by_status = dict(query(backend, "select status, count(*) from duetime.reminder group by 1"))
    print(f"\n{backend.name}: {took:.1f} s, {churn.deadlocks} deadlocks, {by_status}")

    assert [key for key, count in Counter(ledger.keys).items() if count > 1] == []
    assert [delivery for delivery in ledger.deliveries if delivery.early] == []
    assert stale(churn, ledger) == []
    assert lost(churn, ledger, backend) == []
    assert disagreements(backend, ledger) == []
    assert len(ledger.deliveries) > 100, "most of it was tried"


async def settled(backend: Backend) -> bool:
    """Nothing is armed any more: all times have passed."""
    return not query(backend, "select 1 from duetime.reminder where status = 'armed'")


def stale(churn: Churn, ledger: Ledger) -> list[Delivery]:
    """What was sent, and was not true at any moment from its claim until it was sent."""
    return [
        sent
        for sent in ledger.deliveries
        if sent.due_at not in churn.subjects[sent.subject].between(sent.claimed, sent.sent)
        or not any(
            sent.rule in rules for rules in churn.rules.between(sent.claimed, sent.sent)
        )
    ]  # fmt: skip


def lost(churn: Churn, ledger: Ledger, backend: Backend) -> list[Any]:
    """What held from before its time until well after it, and neither came nor says why."""
    sent = {(one.subject, one.due_at, one.rule) for one in ledger.deliveries}
    expired = {
        (subject, rule)
        for subject, rule in query(
            backend,
            "select s.ref, u.name from duetime.reminder as r"
            " join duetime.rule as u on u.id = r.rule"
            " join duetime.subject as s on s.id = r.subject_id where r.status = 'expired'",
        )
    }
    to_monotonic = time.monotonic() - time.time()
    found = []
    for ref, history in churn.subjects.items():
        for start, end, due in history.spans():
            for rules_start, rules_end, rules in churn.rules.spans():
                for rule in rules if due is not None else ():
                    parsed = parse_rule(rule)
                    at = (due + parsed.offset).timestamp() + to_monotonic
                    if not max(start, rules_start) < at or not at + 1.0 < min(end, rules_end):
                        continue
                    if (ref, due, parsed.text) not in sent and (ref, parsed.id) not in expired:
                        found.append((ref, due, rule))
    return found


def disagreements(backend: Backend, ledger: Ledger) -> list[Any]:
    """Reminders whose status, job and deliveries do not tell the same."""
    found: list[Any] = query(
        backend,
        # A job that failed because its reminder was deleted meanwhile waits for its next attempt.
        "select 'waits', d.job_id, r.status from duetime.due as d"
        " left join duetime.reminder as r on r.job_id = d.job_id"
        " where r.status <> 'armed' or r.status is null and d.attempt = 0",
    )
    agree: dict[str, set[str | None]] = {
        "sent": {"completed"},
        # Its job may have been claimed when it was withdrawn: it is skipped, or was too late.
        "superseded": {"superseded", "cancelled", "expired"},
        "cancelled": {"superseded", "cancelled", "expired"},
        "expired": {"expired", None},
        "skipped": {"cancelled", None},
    }
    rows = query(
        backend,
        "select r.id, r.status, j.state, r.key, d.key, r.ended_at is null"
        " from duetime.reminder_row as r"
        " left join duetime.jobs as j on j.id = r.job_id"
        " left join duetime.delivery as d on d.reminder_id = r.id",
    )
    keys = set(ledger.keys)
    for reminder_id, status, state, key, delivered, open_ended in rows:
        if state not in agree.get(status, ()) or open_ended:
            found.append(("state", reminder_id, status, state))
        if (status == "sent" or delivered is not None) and key not in keys:
            found.append(("never sent", reminder_id, status))
        if status == "sent" and delivered != key:
            found.append(("no delivery", reminder_id, status))
        if state == "completed" and delivered is None:
            found.append(("completed without a delivery", reminder_id, status))
    return found


@on_both
async def test_rules_changed_away_and_back_arm_again(backend: Backend, app: Duetime) -> None:
    await app.scopes.put("guild", remind=["-5h"])
    await app.subjects.put("game", scope="guild", due=datetime.now(UTC) + 10 * HOUR)
    await app.scopes.put("guild", remind=["-2h"])
    await app.scopes.put("guild", remind=["-5h"])
    armed = await app.reminders.list(subject="game", status="armed")

    assert [reminder.rule.text for reminder in armed] == ["-5h"]


@on_both
async def test_a_scopes_rule_with_another_option_stays_armed(
    backend: Backend, app: Duetime
) -> None:
    await app.scopes.put("guild", remind=["-5h"])
    await app.subjects.put("game", scope="guild", due=datetime.now(UTC) + 10 * HOUR)
    await app.scopes.put("guild", remind={"rule": "-5h", "urgent": True})
    armed = await app.reminders.list(subject="game", status="armed")

    assert [reminder.rule.urgent for reminder in armed] == [True]


# Changes while a reminder is being sent


class Held:
    """A handler that has handed over its message, and waits to be let go on."""

    def __init__(self, app: Duetime, **options: Any) -> None:
        self.keys: list[str] = []
        self.sending = asyncio.Event()
        self.go = asyncio.Event()
        self.error: Exception | None = None

        @app.on_reminder(**options)
        async def send(reminder: Reminder, ctx: Context) -> Sent:
            self.keys.append(ctx.key)
            self.sending.set()
            await self.go.wait()
            if self.error is not None:
                raise self.error
            return Sent("ext")

    async def release(self) -> None:
        self.go.set()


def soon() -> datetime:
    return datetime.now(UTC) + 150 * MILLISECOND


async def ended(backend: Backend) -> bool:
    """No job waits or runs."""
    states = "('pending', 'retrying', 'running')"
    return not query(backend, f"select 1 from duetime.jobs where state in {states}")


@on_both
async def test_what_was_sent_while_its_subject_ended_is_recorded_as_sent(
    backend: Backend, app: Duetime
) -> None:
    held = Held(app)
    async with app.worker():
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE)
        await until_true(held.sending.is_set)
        await app.subjects.complete("game")
        await held.release()
        await until(lambda: ended(backend))
    reminders = await app.reminders.list(subject="game")
    sent = [reminder for reminder in reminders if reminder.key in held.keys]

    assert [reminder.status.value for reminder in sent] == ["sent"]


@on_both
async def test_opened_again_after_it_was_sent_is_not_sent_again(
    backend: Backend, app: Duetime
) -> None:
    held = Held(app)
    options: dict[str, Any] = {
        "due": datetime.now(UTC) + HOUR,
        "remind": {"rule": "-2h", "past": "send_now"},
    }
    async with app.worker():
        await app.subjects.put("game", **options)
        await until_true(held.sending.is_set)
        await app.subjects.complete("game")
        await held.release()
        await until(lambda: ended(backend))
        await app.subjects.put("game", **options)
        await until(lambda: ended(backend))

    assert len(held.keys) == 1


@on_both
async def test_opened_again_while_it_is_sent_is_not_sent_twice(
    backend: Backend, app: Duetime
) -> None:
    held = Held(app)
    options: dict[str, Any] = {
        "due": datetime.now(UTC) + HOUR,
        "remind": {"rule": "-2h", "past": "send_now"},
    }
    async with app.worker():
        await app.subjects.put("game", **options)
        await until_true(held.sending.is_set)
        await app.subjects.complete("game")
        await app.subjects.put("game", **options)
        try:
            await until_true(lambda: len(held.keys) > 1, seconds=1)
        except AssertionError:
            pass  # As it should be.
        await held.release()
        await until(lambda: ended(backend))

    assert len(held.keys) == 1


@on_both
async def test_what_was_sent_while_its_subject_was_deleted_is_audited(
    backend: Backend, app: Duetime
) -> None:
    held = Held(app, retry=Constant("50ms"))
    async with app.worker():
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE)
        await until_true(held.sending.is_set)
        await app.subjects.delete("game")
        await held.release()
        await until(lambda: ended(backend))
    actions = [event.action for event in await app.audit.list(entity="subject:game")]
    states = query(backend, "select state, error_code from duetime.jobs")

    assert len(held.keys) == 1
    assert "reminder.sent" in actions
    assert states == [("completed", None)]


@on_both
async def test_no_delivery_is_left_of_a_deleted_subject(backend: Backend, app: Duetime) -> None:
    held = Held(app, retry=Constant("50ms"))
    async with app.worker():
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE)
        await until_true(held.sending.is_set)
        await app.subjects.delete("game")
        await held.release()
        await until(lambda: ended(backend))
    orphans = query(
        backend,
        "select id from duetime.delivery"
        " where reminder_id not in (select id from duetime.reminder)",
    )

    assert len(held.keys) == 1
    assert orphans == []


@on_both
async def test_a_withdrawn_reminder_that_fails_is_not_tried_again(
    backend: Backend, app: Duetime
) -> None:
    held = Held(app, retry=Constant("1h"))
    held.error = OSError("the line is busy")
    async with app.worker():
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE)
        await until_true(held.sending.is_set)
        await app.subjects.complete("game")
        await held.release()

        async def not_running() -> bool:
            return not query(backend, "select 1 from duetime.jobs where state = 'running'")

        await until(not_running)
    left = query(
        backend,
        "select r.status, d.attempt from duetime.due as d"
        " join duetime.reminder as r on r.job_id = d.job_id",
    )

    assert left == []


@pytest.mark.parametrize(
    "backend",
    [
        "postgres15",
        pytest.param("sqlite"),
    ],
    indirect=True,
)
async def test_a_withdrawn_reminder_that_was_parked_ends(backend: Backend, app: Duetime) -> None:
    await app.subjects.put("game", due=datetime.now(UTC) + 9 * HOUR, remind=["-1h"])
    query(
        backend,
        "insert into duetime.parked (job_id, queue, task, priority, run_at, attempt, reason,"
        " parked_at) select job_id, queue, 'duetime.remind', priority, run_at, attempt,"
        ' \'{"code": "task_unknown"}\', run_at from duetime.due',
    )
    query(backend, "delete from duetime.due")
    await app.subjects.complete("game")

    assert query(backend, "select state from duetime.jobs") == [("superseded",)]


# 2. Clients that race one another


async def blocked(backend: Backend, sessions: int) -> bool:
    rows = query(
        backend,
        "select 1 from pg_stat_activity"
        " where wait_event_type = 'Lock' and datname = current_database()",
    )
    return len(rows) >= sessions


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
async def test_puts_of_a_new_subject_at_once_add_it_once(backend: Backend, app: Duetime) -> None:
    due = datetime.now(UTC) + HOUR
    answers, added = [], []
    for turn in range(25):
        ref = f"game:{turn}"
        puts = (app.subjects.put(ref, due=due, remind=["-1m"]) for _ in range(CLIENTS))
        answers.append(sorted(await asyncio.gather(*puts)))
        events = await app.audit.list(entity=f"subject:{ref}")
        added.append(len([event for event in events if event.before is None]))
    reminders = await app.reminders.list(status="armed", limit=1000)

    assert len(reminders) == 25
    assert answers == [["added"] + ["same"] * (CLIENTS - 1)] * 25
    assert added == [1] * 25


@on_postgres
async def test_of_two_puts_of_a_new_subject_the_later_holds(backend: Backend, app: Duetime) -> None:
    due = datetime.now(UTC) + HOUR
    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        await app.subjects.put("game", due=due, data={"title": "first"}, tx=connection)
        later = asyncio.create_task(app.subjects.put("game", due=due, data={"title": "second"}))
        await until(lambda: blocked(backend, 1))
        await connection.commit()
    await later
    subject = await app.subjects.get("game")

    assert subject.data == {"title": "second"}


@on_both
async def test_a_moved_put_of_a_new_subject_supersedes_the_first(
    backend: Backend, app: Duetime
) -> None:
    """Whoever comes last: one revision's reminders are armed."""
    start = datetime.now(UTC) + HOUR
    for turn in range(20):
        dues = [start + n * HOUR for n in range(CLIENTS)]
        await asyncio.gather(
            *(app.subjects.put(f"game:{turn}", due=due, remind=["-1m"]) for due in dues)
        )
        subject = await app.subjects.get(f"game:{turn}")
        armed = await app.reminders.list(subject=f"game:{turn}", status="armed")

        assert [reminder.due_at for reminder in armed] == [subject.due_at]


@on_both
async def test_puts_racing_rule_changes_arm_what_the_last_rules_say(
    backend: Backend, app: Duetime
) -> None:
    """Seven clients put, one changes rules at two levels: no deadlock, nothing missed."""
    operations = 400
    far = datetime.now(UTC) + 1000 * HOUR
    chance = random.Random(3)
    await app.scopes.put("guild", remind=["-1h"])
    await app.scopes.put("channel", parent="guild")
    apps = [Duetime(backend.url) for _ in range(CLIENTS)]
    slowest = 0.0

    async def put(client: int) -> None:
        for n in range(operations // CLIENTS):
            ref = f"game:{chance.randrange(40)}"
            scope = chance.choice(("guild", "channel"))
            await apps[client].subjects.put(ref, scope=scope, due=far + n * HOUR)

    async def change() -> None:
        nonlocal slowest
        for n in range(operations // CLIENTS):
            began = time.monotonic()
            if n % 3:
                await apps[0].scopes.put("guild", remind=[f"-{n + 2}h", f"-{n + 2}m"])
            else:
                rules = [f"-{n + 2}s"] if n % 2 else None
                await apps[0].scopes.put("channel", parent="guild", remind=rules)
            slowest = max(slowest, time.monotonic() - began)

    async with asyncio.timeout(40):
        await asyncio.gather(change(), *(put(client) for client in range(1, CLIENTS)))
    print(f"\n{backend.name}: the slowest rule change among puts took {slowest * 1000:.0f} ms")
    # Subjects that were locked when their scope changed are left to workers.
    assert await rearm_stale(app) is None
    wrong = []
    for [ref] in query(backend, "select ref from duetime.subject"):
        rules, _ = await app.subjects.rules(ref)
        subject = await app.subjects.get(ref)
        armed = await app.reminders.list(subject=ref, status="armed")
        if sorted(rules) != sorted(reminder.rule.text for reminder in armed) or {
            reminder.due_at for reminder in armed
        } != {subject.due_at}:
            wrong.append(ref)
    for one in apps:
        await one.close()

    assert wrong == []
    waiting = (
        "select count(*) from duetime.due as d join duetime.job as j on j.id = d.job_id"
        " where substr(j.task, 9) = 'remind'"
    )
    assert query(backend, waiting) == query(
        backend, "select count(*) from duetime.reminder where status = 'armed'"
    )


@on_postgres
async def test_two_changes_of_one_scope_do_not_deadlock(backend: Backend, app: Duetime) -> None:
    await app.scopes.put("guild", remind=["-1h"])
    async with await psycopg.AsyncConnection.connect(backend.url) as reader:
        await reader.execute("select from duetime.scope for share")
        changes = [asyncio.create_task(app.scopes.put("guild", remind=[f"-{n}h"])) for n in (2, 3)]
        await until(lambda: blocked(backend, 2))
        await reader.commit()
    answers = await asyncio.gather(*changes, return_exceptions=True)

    assert answers == ["changed", "changed"]


async def _armed_by(app: Duetime, ref: str, rules: list[str]) -> bool:
    armed = await app.reminders.list(subject=ref, status="armed")
    return [reminder.rule.text for reminder in armed] == rules


@on_postgres
@pytest.mark.parametrize("verb", ["complete", "delete"])
async def test_closing_a_subject_does_not_deadlock_with_a_rule_change(
    backend: Backend, app: Duetime, verb: str
) -> None:
    """Somebody holds the first subject: neither waits for it, and the rest follows later."""
    await app.scopes.put("guild", remind=["-1h"])
    for ref in ("a", "b"):
        await app.subjects.put(ref, scope="guild", due=datetime.now(UTC) + 9 * HOUR)
    async with await psycopg.AsyncConnection.connect(backend.url) as reader:
        await reader.execute("select from duetime.subject where ref = 'a' for update")
        async with asyncio.timeout(20):
            await asyncio.gather(
                app.scopes.put("guild", remind=["-2h"]), getattr(app.subjects, verb)("b")
            )
        await reader.commit()
    async with app.worker():
        await until(lambda: _armed_by(app, "a", ["-2h"]))

    assert await _armed_by(app, "b", [])


@on_postgres
async def test_puts_do_not_overtake_a_rule_change_that_waits(
    backend: Backend, app: Duetime
) -> None:
    """Else a change among steady puts waits for ever: measured, 10 s of 10 s."""
    due = datetime.now(UTC) + 9 * HOUR
    await app.scopes.put("guild", remind=["-1h"])
    async with await psycopg.AsyncConnection.connect(backend.url) as connection:
        await app.subjects.put("first", scope="guild", due=due, tx=connection)
        changing = asyncio.create_task(app.scopes.put("guild", remind=["-2h"]))
        await until(lambda: blocked(backend, 1))
        later = asyncio.create_task(app.subjects.put("later", scope="guild", due=due))

        async def waits_or_is_done() -> bool:
            return later.done() or await blocked(backend, 2)

        await until(waits_or_is_done)
        overtook = later.done()
        await connection.commit()
    await asyncio.gather(changing, later)

    assert not overtook


@on_both
async def test_puts_racing_completions_leave_what_the_subject_says(
    backend: Backend, app: Duetime
) -> None:
    due = datetime.now(UTC) + HOUR
    chance = random.Random(5)
    refs = [f"game:{n}" for n in range(10)]
    for ref in refs:
        await app.subjects.put(ref, due=due, remind=["-1m", "-2m"])

    async def client() -> None:
        for _ in range(25):
            ref = chance.choice(refs)
            if chance.random() < 0.5:
                moved = due + chance.randrange(3) * HOUR
                await app.subjects.put(ref, due=moved, remind=["-1m", "-2m"])
            else:
                await app.subjects.complete(ref)

    async with asyncio.timeout(30):
        await asyncio.gather(*(client() for _ in range(CLIENTS)))
    for ref in refs:
        subject = await app.subjects.get(ref)
        armed = await app.reminders.list(subject=ref, status="armed")
        expected = [subject.due_at] * 2 if subject.status == "open" else []

        assert [reminder.due_at for reminder in armed] == expected


# 3. Crash points


class Cut(Exception):
    pass


def cut(statements: Statements, after: int) -> Statements:
    """The same statements, broken off after so many."""
    statement = next(statements)
    for _ in range(after):
        rows = yield statement
        try:
            statement = statements.send(rows)
        except StopIteration as done:
            return done.value
    raise Cut


@on_both
async def test_a_change_broken_off_anywhere_leaves_nothing(backend: Backend, app: Duetime) -> None:
    store = await app.store()
    verbs = DeliveryStatements(store.dialect)
    due = datetime.now(UTC) + 9 * HOUR
    rules = (parse_rule("-2h"), parse_rule("-3h"))
    await app.scopes.put("guild", remind=["-1h"])
    await app.subjects.put("game", scope="guild", due=due, recipients=["ann"])
    moved: dict[str, Any] = {"scope": "guild", "due": due + HOUR, "recipients": ["ann", "bob"]}
    [armed] = await app.reminders.list(limit=1000)
    note = {"channel": "c", "key": "k", "status": "sent", "attempts": 1, "external_id": None}
    changes: dict[str, Callable[[], Statements]] = {
        "add": lambda: verbs.put([app.subjects.define("new", **moved)], actor="x"),
        "move": lambda: verbs.put([app.subjects.define("game", **moved)], actor="x"),
        "complete": lambda: verbs.close("game", actor="x", delete=False),
        "delete": lambda: verbs.close("game", actor="x", delete=True),
        "rules": lambda: verbs.put_scope(ScopeInfo("guild", None, rules, False), actor="x"),
        "sent": lambda: verbs.record([SentReminder(armed, [note], "w")]),
    }

    def everything() -> Any:
        rows = "select r.id, r.status, s.revision, s.status from duetime.reminder as r"
        rows += " join duetime.subject as s on s.id = r.subject_id"
        return counts(backend), query(backend, rows)

    before = everything()
    for name, make in changes.items():
        broken = 0
        while broken < 50:
            try:
                # What ends, ends with an error too: it is not to stay.
                await store.transact(_then_fail(cut(make(), broken)))
            except Cut:
                assert everything() == before, f"{name}, broken off after {broken}"
            except Finished:
                break
            broken += 1

        assert 2 <= broken < 50, name
        assert everything() == before


class Finished(Exception):
    pass


def _then_fail(statements: Statements) -> Statements:
    yield from statements
    raise Finished


@on_both
async def test_a_handler_that_dies_after_sending_tries_again_with_its_key(
    backend: Backend, app: Duetime
) -> None:
    keys: list[str] = []

    @app.on_reminder(retry=Constant("20ms"))
    async def send(reminder: Reminder, ctx: Context) -> Sent:
        keys.append(ctx.key)
        assert ctx.key == reminder.key
        if len(keys) == 1:
            raise ConnectionError("the answer was lost")
        return Sent("ext")

    async with app.worker():
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE)
        await until_true(lambda: len(keys) == 2)
        await until(lambda: settled(backend))
    [reminder] = await app.reminders.list(limit=1000)

    assert keys == [reminder.key] * 2
    assert (reminder.status.value, reminder.external_id) == ("sent", "ext")
    assert query(backend, "select count(*) from duetime.delivery") == [(1,)]


@on_postgres
async def test_a_record_whose_session_is_killed_is_tried_again(
    backend: Backend, app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    """The message is out, and the transaction of its record is killed at its last statement."""
    keys: list[str] = []

    @app.on_reminder(retry=Constant("20ms"))
    async def send(_: Reminder, ctx: Context) -> Sent:
        keys.append(ctx.key)
        return Sent("ext")

    query(
        backend,
        "create function kill() returns trigger language plpgsql as"
        " 'begin perform pg_terminate_backend(pg_backend_pid()); return new; end';"
        "create trigger killer before insert on duetime.audit for each row"
        " when (new.action = 'reminder.sent') execute function kill()",
    )
    async with app.worker():
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE)
        await until_true(lambda: "send_not_recorded" in events_of(caplog))
        query(backend, "drop trigger killer on duetime.audit")
        await until(lambda: settled(backend))
    [reminder] = await app.reminders.list(limit=1000)

    assert keys == [reminder.key]
    assert reminder.status.value == "sent"


def break_audit(backend: Backend, action: str) -> None:
    """From now on no event of this action can be written."""
    if backend.is_postgres:
        query(
            backend,
            "create function fail() returns trigger language plpgsql as"
            " 'begin raise exception ''no room for the audit''; end';"
            "create trigger broken before insert on duetime.audit for each row"
            f" when (new.action like '{action}') execute function fail()",
        )
    else:
        query(
            backend,
            "create trigger broken before insert on duetime.audit"
            f" when new.action like '{action}'"
            " begin select raise(abort, 'no room for the audit'); end",
        )


def mend_audit(backend: Backend) -> None:
    query(backend, "drop trigger broken" + (" on duetime.audit" if backend.is_postgres else ""))


@on_both
async def test_a_change_that_cannot_be_audited_is_not_made(backend: Backend, app: Duetime) -> None:
    due = datetime.now(UTC) + 9 * HOUR
    await app.scopes.put("guild", remind=["-1h"])
    await app.subjects.put("game", scope="guild", due=due)
    before = counts(backend), await app.subjects.get("game"), await app.scopes.list()
    break_audit(backend, "%")
    for change in (
        lambda: app.subjects.put("new", scope="guild", due=due),
        lambda: app.subjects.put("game", scope="guild", due=due + HOUR),
        lambda: app.subjects.complete("game"),
        lambda: app.subjects.delete("game"),
        lambda: app.scopes.put("guild", remind=["-2h"]),
        lambda: app.scopes.put("club", remind=["-2h"]),
    ):
        with pytest.raises(StorageError, match="no room for the audit"):
            await change()

    assert (counts(backend), await app.subjects.get("game"), await app.scopes.list()) == before


@on_both
async def test_the_mark_of_a_sent_reminder_rolls_back_with_its_audit(
    backend: Backend, app: Duetime, caplog: pytest.LogCaptureFixture
) -> None:
    """Not marked, not completed; the record is tried again, and not the message."""
    keys: list[str] = []
    seen: list[Any] = []

    @app.on_reminder(retry=Constant("100ms"))
    async def send(_: Reminder, ctx: Context) -> Sent:
        keys.append(ctx.key)
        return Sent("ext")

    break_audit(backend, "reminder.sent")
    async with app.worker():
        await app.subjects.put("game", due=soon(), remind=EVEN_LATE)
        await until_true(lambda: "send_not_recorded" in events_of(caplog))
        seen.extend(query(backend, "select status from duetime.reminder"))
        seen.extend(query(backend, "select count(*) from duetime.delivery"))
        seen.extend(query(backend, "select count(*) from duetime.attempt"))
        await asyncio.to_thread(mend_audit, backend)
        await until(lambda: settled(backend))
    actions = [event.action for event in await app.audit.list(entity="subject:game")]

    assert seen == [("armed",), (0,), (0,)]
    assert len(keys) == 1
    assert actions.count("reminder.sent") == 1


# 4. Plans: 100,000 subjects, 200,000 reminders, half of them armed

SUBJECTS = 100_000
FILL_POSTGRES = """
insert into duetime.scope (ref, parent) values ('guild', null);
insert into duetime.scope (ref, parent)
    select 'channel:' || n, 'guild' from generate_series(0, 99) as n;
insert into duetime.subject (ref, scope, due_at)
    select 'subject:' || n, 'channel:' || n % 100, now() + n * interval '1 minute'
    from generate_series(1, {subjects}) as n;
insert into duetime.rule (digest, name, body)
    select md5(n::text)::uuid, 'rule-' || n, '{{}}' from generate_series(1, 2) as n;
insert into duetime.reminder (key, subject_id, due_at, rule, time, revision, run_at, status, job_id)
    select md5(s.id || ' ' || n)::uuid,
        s.id, s.due_at, n, s.due_at, 1, s.due_at,
        case when s.id % 2 = 0 then 'armed' else 'sent' end, (s.id - 1) * 2 + n
    from duetime.subject as s cross join generate_series(1, 2) as n;
insert into duetime.job (id, task, queue, priority, args, max_attempts)
    select job_id, 'duetime.remind', 'default', 5, '{{}}', 3 from duetime.reminder;
insert into duetime.due (queue, priority, run_at, job_id)
    select 'default', 5, run_at, job_id from duetime.reminder where status = 'armed';
insert into duetime.attempt (job_id, token, attempt, outcome, finished_at)
    select job_id, job_id, 1, 'completed', now() from duetime.reminder where status = 'sent';
"""
NOW = 1_900_000_000_000_000
FILL_SQLITE = """
insert into duetime_scope (ref, parent, updated_at) values ('guild', null, {now});
with recursive n(n) as (select 0 union all select n + 1 from n where n < 99)
insert into duetime_scope (ref, parent, updated_at) select 'channel:' || n, 'guild', {now} from n;
with recursive n(n) as (select 1 union all select n + 1 from n where n < {subjects})
insert into duetime_subject (id, ref, scope, due_at, created_at, updated_at)
    select n, 'subject:' || n, 'channel:' || n % 100, {now} + n * 60000000, {now}, {now} from n;
insert into duetime_rule (id, name, body) values (1, 'rule-1', '{{}}'), (2, 'rule-2', '[]');
with n(n) as (values (1), (2))
insert into duetime_reminder (id, key, subject_id, due_at, rule, time, revision, run_at,
                              status, job_id, created_at)
    select (s.id - 1) * 2 + n, 'dtr_' || s.id || n,
        s.id, s.due_at, n, s.due_at, 1, s.due_at,
        iif(s.id % 2 = 0, 'armed', 'sent'), (s.id - 1) * 2 + n, {now}
    from duetime_subject as s cross join n;
insert into duetime_job (id, task, queue, priority, args, max_attempts, created_at)
    select job_id, 'duetime.remind', 'default', 5, '{{}}', 3, {now} from duetime_reminder;
insert into duetime_due (job_id, queue, priority, run_at)
    select job_id, 'default', 5, run_at from duetime_reminder where status = 'armed';
insert into duetime_attempt (job_id, token, attempt, outcome, finished_at)
    select job_id, job_id, 1, 'completed', {now} from duetime_reminder where status = 'sent';
"""
SOME = list(range(1, 51))
DOCUMENTS: dict[str, tuple[str, Any]] = {
    "of": ("reminder_of", SOME),
    "withdraw": ("reminder_withdraw", {"ids": SOME, "status": "superseded", "reason": "x"}),
    "unrecorded": ("reminder_unrecorded", {}),
    "record_unsent": ("reminder_record_unsent", SOME),
    "by key": ("receipt_keyed", {"key": "dtr_" + 32 * "0"}),
    "settle by a receipt": ("reminder_report", {"id": 7, "reason": "x"}),
    "lock, by ref": ("subject_lock", {"ids": [], "refs": ["subject:7", "subject:9"]}),
    "lock, by id": ("subject_lock", {"ids": SOME, "refs": []}),
    "below": ("subjects_below", {"ref": "channel:7", "after": 0}),
    "below, all": ("subjects_below", {"ref": "guild", "after": 50_000}),
    "find, by id": ("reminder_get", {"ids": [77]}),
    "ready": ("reminder_ready", SOME),
    "free": ("reminder_free", SOME),
    "locked": ("reminder_subject", {"ids": [77], "jobs": SOME}),
    "together": (
        "reminder_group",
        {"subject_id": 7, "due_at": None, "rule_id": "rule-1", "time": None},
    ),
    "deliveries": ("delivery_of", [77]),
    "known": ("delivery_known", {"external_id": "x", "channel": None}),
    "list, by subject": (
        "reminder_about",
        {"subject": "subject:7", "status": None, "time": None, "id": 0, "limit": 100},
    ),
}


class Session:
    """A connection as the store's, with the statements prepared on empty tables."""

    def __init__(self, connection: psycopg.Connection[Any], sql: dict[str, str]) -> None:
        self._connection = connection
        connection.execute("set enable_seqscan = off")
        connection.execute("set jit = off")
        for name, document in dict(DOCUMENTS.values()).items():
            text = sql[name].replace("%s", "$1")
            connection.execute(f"prepare {name} (unknown) as {text}".encode())
            for _ in range(6):
                self._execute("", name, document)
        connection.execute(FILL_POSTGRES.format(subjects=SUBJECTS).encode())

    def _execute(self, explain: str, name: str, document: Any) -> str:
        statement = f"{explain} execute {name} ('{json.dumps(document)}')"
        cursor = self._connection.execute(statement.encode())
        return "\n".join(str(row[0]) for row in cursor.fetchall())

    def plan(self, name: str, document: Any) -> str:
        with self._connection.transaction(force_rollback=True):
            return self._execute("explain (analyze, buffers)", name, document)


@pytest.fixture(scope="module")
def session(postgres15: PostgresServer) -> Iterator[Session]:
    with fresh_database(postgres15) as url:
        upgrade(PostgresMigrator(url))
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            yield Session(connection, PostgresStore(url)._sql)


@pytest.fixture(scope="module")
def lite(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sqlite3.Connection]:
    path: Path = tmp_path_factory.mktemp("plans") / "duetime.db"
    upgrade(SqliteMigrator(str(path)))
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(FILL_SQLITE.format(now=NOW, subjects=SUBJECTS))
        yield connection


def slow(*names: str) -> list[Any]:
    """The statements, of which these walk a table: known, and to be mended."""
    mark = pytest.mark.xfail(reason="walks the table, by whatever index", strict=True)
    return [
        pytest.param(*DOCUMENTS[name], id=name, marks=[mark] if name in names else [])
        for name in DOCUMENTS
    ]


@pytest.mark.parametrize(("name", "document"), slow())
def test_postgres_reads_only_what_it_is_asked_for(
    session: Session, name: str, document: Any
) -> None:
    plan = session.plan(name, document)
    wasted = re.findall(r"Rows Removed by (?:Join )?Filter: (\d+)", plan)

    assert not re.search(r"Seq Scan on (reminder|subject|job|due|attempt)\b", plan)
    assert max(map(int, wasted), default=0) < 1000


@pytest.mark.parametrize(("name", "document"), slow())
def test_sqlite_takes_few_steps(lite: sqlite3.Connection, name: str, document: Any) -> None:
    """Counted in steps of SQLite's machine: a walk over a table takes a million."""
    sql = SqliteStore("never-opened.db")._sql
    parameters = (json.dumps({"now": NOW, "doc": document}),)
    texts = [text for key, text in sql.items() if re.fullmatch(rf"{name}(_\d)?", key)]
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 100
        return 0

    lite.set_progress_handler(step, 100)
    try:
        for text in texts:
            lite.execute(text, parameters).fetchall()
    finally:
        lite.set_progress_handler(None, 100)
        lite.rollback()
    print(f"\n{name}: {steps:,} steps")

    assert texts
    assert steps < 50_000


# 5. Measures, printed: DUETIME_MEASURE=20000 python -m pytest -s -k measure


@on_both
async def test_measure_rearming_and_punctuality(backend: Backend, app: Duetime) -> None:
    many = int(os.environ.get("DUETIME_MEASURE", "2000"))
    puts: list[float] = []
    late: list[float] = []

    @app.on_reminder
    async def send(reminder: Reminder) -> Sent:
        assert reminder.run_at is not None
        late.append((datetime.now(UTC) - reminder.run_at) / MILLISECOND)
        return Sent()

    async with app.worker():
        for n in range(50):
            began = time.monotonic()
            due = datetime.now(UTC) + 150 * MILLISECOND
            await app.subjects.put(f"soon:{n}", due=due, remind=["-100ms"])
            puts.append((time.monotonic() - began) * 1000)

            async def over() -> bool:
                return not await app.reminders.list(status="armed", limit=1000)

            await until(over)
    far = datetime.now(UTC) + 1000 * HOUR
    await app.scopes.put("guild", remind=["-1h"])
    subjects = [app.subjects.define(f"far:{n}", scope="guild", due=far) for n in range(many)]
    began = time.monotonic()
    for start in range(0, many, 2000):
        await app.subjects.put_many(subjects[start : start + 2000])
    added = time.monotonic() - began
    began = time.monotonic()
    put = await app.scopes.put("guild", remind=["-2h"])
    rearmed = time.monotonic() - began
    late.sort()
    puts.sort()
    print(
        f"\n{backend.name}: {many:,} added in {added:.1f} s, re-armed in {rearmed:.1f} s; a put"
        f" {puts[25]:.1f} ms (p50) {puts[49]:.1f} (max); sent {late[len(late) // 2]:.1f} ms (p50)"
        f" {late[-1]:.1f} (max of {len(late)}) after its time"
    )

    assert put.affected == many
    assert late[0] >= 0, "never early"
