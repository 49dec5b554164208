"""A recipient's limit, digests and clock, under several real workers at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from duetime import Constant, Duetime, Sent
from duetime.channels.channel import Message, NotSent
from tests.conftest import Backend, query
from tests.counting import Counted
from tests.engine.reminders.test_reminder_races import EVEN_LATE, SHORT
from tests.waiting import until, until_true, waits

WORKERS = 8
MOST = 5
GAMES = 40
HOUR = timedelta(hours=1)

on_both = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("backend", ["postgres15"], indirect=True)


class Mail:
    """The outside world: what came out, over all workers."""

    name = "mail"

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self.failures: list[BaseException] = []
        self.pause = 0.005

    async def send(self, message: Message) -> Sent:
        await asyncio.sleep(self.pause)
        self.messages.append(message)
        if message.event == "reminder.digest" and self.failures:
            raise self.failures.pop()
        return Sent(message.key)

    async def close(self) -> None: ...

    @property
    def digests(self) -> list[Message]:
        return [one for one in self.messages if one.event == "reminder.digest"]

    @property
    def singles(self) -> list[Message]:
        return [one for one in self.messages if one.event != "reminder.digest"]


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url, migrate=True, **SHORT)
    await app.store()
    yield app
    await app.close()


@asynccontextmanager
async def fleet(backend: Backend, mail: Mail, workers: int = WORKERS) -> AsyncIterator[None]:
    """Workers, each with an application, a store and connections of its own."""
    async with AsyncExitStack() as stack:
        for _ in range(workers):
            app = Duetime(backend.url, **SHORT)
            stack.push_async_callback(app.close)
            app.add_channel(mail, retry=Constant("50ms", max_attempts=5))
            await stack.enter_async_context(app.worker(concurrency=10))
        yield


async def put_games(app: Duetime, count: int = GAMES) -> None:
    await app.recipients.put("ann", max_per_hour=MOST)
    due = datetime.now(UTC) + timedelta(milliseconds=500)
    games = [
        app.subjects.define(f"game:{n}", due=due, remind=EVEN_LATE, recipients=["ann"])
        for n in range(count)
    ]
    await app.subjects.put_many(games)


async def until_held(backend: Backend) -> None:
    """Wait until those that may go at once are recorded as sent, and all others are held."""
    sql = (
        "select sum(case when status = 'sent' then 1 else 0 end),"
        " sum(case when held = 'limit' then 1 else 0 end) from duetime.reminder"
    )

    async def held() -> bool:
        return query(backend, sql) == [(MOST, GAMES - MOST)]

    await until_or_tell(backend, held)


async def until_all_sent(backend: Backend, app: Duetime) -> None:
    async def sent() -> bool:
        return not await app.reminders.list(status="armed", limit=1000)

    await until_or_tell(backend, sent)


async def until_or_tell(backend: Backend, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait; if that is in vain, say what became of the reminders and of their jobs."""
    state = "select status, held, reason, count(*) from duetime.reminder group by 1, 2, 3"
    ends = "select outcome, error, count(*) from duetime.attempt group by 1, 2"
    due = "select priority, attempt, min(run_at), max(run_at) from duetime.due group by 1, 2"
    try:
        await until(condition)
    except AssertionError as error:
        raise AssertionError([query(backend, sql) for sql in (state, ends, due)]) from error


def an_hour_later(backend: Backend) -> None:
    """What ann got is an hour old."""
    step = "interval '1 hour'" if backend.is_postgres else "3600000000"
    query(backend, f"update duetime.recipient_use set at = at - {step}")


def check_none_twice_none_lost(backend: Backend, mail: Mail, count: int = GAMES) -> None:
    """Each game came once: alone, or in one digest (under one key, if that was tried again)."""
    came: dict[str, set[str]] = {}
    for message in mail.messages:
        subjects = [one["subject"] for one in message.data.get("reminders", ())]
        for subject in subjects or [message.subject]:
            came.setdefault(subject, set()).add(message.key)

    assert sorted(came) == sorted(f"game:{n}" for n in range(count))
    assert all(len(keys) == 1 for keys in came.values())
    rows = query(
        backend,
        "select r.status, s.ref, d.key from duetime.reminder as r"
        " join duetime.subject as s on s.id = r.subject_id"
        " join duetime.delivery as d on d.reminder_id = r.id and d.status = 'sent'",
    )
    assert len(rows) == count
    assert {status for status, _, _ in rows} == {"sent"}
    assert all(came[ref] == {key} for _, ref, key in rows)
    assert query(backend, "select count(*) from duetime.digest") == [(0,)]


@on_both
async def test_exactly_the_limit_goes_alone_and_the_rest_in_one_digest(
    backend: Backend, app: Duetime
) -> None:
    mail = Mail()
    async with fleet(backend, mail):
        await put_games(app)
        began = time.monotonic()
        await until_held(backend)
        took = time.monotonic() - began
        first = list(mail.messages)
        await asyncio.to_thread(an_hour_later, backend)
        # A change of the recipient has what is held looked at again.
        await app.recipients.put("ann", max_per_hour=MOST, muted=["subject:other"])
        await until_all_sent(backend, app)
    print(f"\n{backend.name}: {GAMES} admitted or held in {took * 1000:.0f} ms after the put")

    assert len(first) == MOST
    assert (len(mail.singles), len(mail.digests)) == (MOST, 1)
    assert mail.digests[0].title == f"{GAMES - MOST} reminders"
    check_none_twice_none_lost(backend, mail)


async def test_who_lets_a_message_through_holds_the_recipients_row(
    pg_app: Duetime, pg_url: str
) -> None:
    """Else two workers at once would count the same messages, and let one too many through."""
    mail = Mail()
    pg_app.add_channel(mail)
    await pg_app.recipients.put("ann", max_per_hour=1)

    async with await psycopg.AsyncConnection.connect(pg_url) as other, pg_app.worker():
        await other.execute("select from duetime.recipient where ref = 'ann' for update")
        await pg_app.subjects.put(
            "game:1",
            due=datetime.now(UTC) + timedelta(milliseconds=500),
            remind=EVEN_LATE,
            recipients=["ann"],
        )
        await until(lambda: waits(pg_url))
        before = len(mail.messages)
        await other.rollback()
        await until_true(lambda: bool(mail.messages))

    assert before == 0


@on_both
async def test_many_of_one_recipient_are_admitted_in_few_transactions(
    backend: Backend, app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    mail = Mail()
    app.add_channel(mail)
    store = await app.store()
    counted = Counted(store, monkeypatch, "recipient_lock")
    await put_games(app)
    counted.ran()
    async with app.worker(concurrency=GAMES):
        await until_held(backend)
        locks = counted.ran()
    first = list(mail.messages)

    assert len(first) == MOST
    assert locks <= GAMES // 4


@on_postgres
async def test_one_that_is_being_changed_does_not_hold_up_those_admitted_with_it(
    backend: Backend, app: Duetime
) -> None:
    mail = Mail()
    app.add_channel(mail)
    await put_games(app)
    await app.recipients.put("ann", max_per_hour=GAMES)
    async with await psycopg.AsyncConnection.connect(backend.url) as other:
        await other.execute(b"select from duetime.reminder order by id limit 1 for no key update")
        async with app.worker(concurrency=GAMES):
            await until_true(lambda: len(mail.messages) == GAMES - 1)
            await other.rollback()
            await until_all_sent(backend, app)

    check_none_twice_none_lost(backend, mail)


@on_both
async def test_quiet_hours_that_are_lifted_while_workers_hold_release_all(
    backend: Backend, app: Duetime
) -> None:
    mail = Mail()
    now = datetime.now(UTC)
    due = now + timedelta(milliseconds=500)
    await app.recipients.put("ann", tz="UTC", quiet=f"{now - HOUR:%H:%M}-{now + 2 * HOUR:%H:%M}")
    games = [
        app.subjects.define(f"game:{n}", due=due, remind=EVEN_LATE, recipients=["ann"])
        for n in range(GAMES)
    ]
    await app.subjects.put_many(games)

    async def some_are_held() -> bool:
        return query(backend, "select count(*) from duetime.reminder where held is not null") != [
            (0,)
        ]

    async with fleet(backend, mail, workers=4):
        await until(some_are_held)
        await app.recipients.put("ann", quiet=None)
        await until_all_sent(backend, app)

    check_none_twice_none_lost(backend, mail)


@on_both
async def test_a_digest_whose_send_fails_is_sent_again_whole(
    backend: Backend, app: Duetime
) -> None:
    """The receiver took it, and the answer was lost: it comes again, under the same key."""
    mail = Mail()
    mail.failures = [
        NotSent("no answer", transient=True, retry_after=timedelta(milliseconds=50)),
        ConnectionError("reset"),
    ]
    async with fleet(backend, mail):
        await put_games(app)
        await until_held(backend)
        await asyncio.to_thread(an_hour_later, backend)
        await app.recipients.put("ann", max_per_hour=MOST, muted=["subject:other"])
        await until_all_sent(backend, app)

    assert len(mail.digests) == 3
    assert len({message.key for message in mail.digests}) == 1
    check_none_twice_none_lost(backend, mail)


@on_both
async def test_a_worker_that_dies_while_it_sends_a_digest_loses_nothing(
    backend: Backend, app: Duetime, tmp_path: Path
) -> None:
    mail = Mail()
    ledger = tmp_path / "ledger"
    ledger.touch()
    module = "tests.engine.reminders.digest_victim"
    command = [sys.executable, "-m", module, backend.url, str(ledger)]
    with subprocess.Popen(command) as victim:  # noqa: ASYNC220 - it has ended when we leave
        try:
            await put_games(app)
            await until_held(backend)
            await asyncio.to_thread(an_hour_later, backend)
            await app.recipients.put("ann", max_per_hour=MOST, muted=["subject:other"])
            await until_true(lambda: victim.poll() is not None)
        finally:
            victim.kill()
    dead = ledger.read_text().split()
    async with fleet(backend, mail, workers=2):
        await until_all_sent(backend, app)
    [digest] = mail.messages

    assert victim.returncode == 9
    assert Counter(key.partition("_")[0] for key in dead) == {"dtr": MOST, "dtd": 1}
    assert digest.key == dead[-1]
    assert len(digest.data["reminders"]) == GAMES - MOST
    rows = query(backend, "select status, count(*) from duetime.reminder group by status")
    assert rows == [("sent", GAMES)]


@on_both
async def test_withdrawals_race_with_the_digest(backend: Backend, app: Duetime) -> None:
    """Games end while the digest goes out: none of them is both sent and said to be cancelled."""
    mail = Mail()
    async with fleet(backend, mail):
        await put_games(app)
        await until_held(backend)
        await asyncio.to_thread(an_hour_later, backend)

        async def close(n: int) -> None:
            await asyncio.sleep(n * 0.002)
            await app.subjects.complete(f"game:{n}")

        await asyncio.gather(
            app.recipients.put("ann", max_per_hour=MOST, muted=["subject:other"]),
            *(close(n) for n in range(GAMES)),
        )
        await until_all_sent(backend, app)
    # The workers have stopped: what was handed over is recorded.
    found = await app.reminders.list(limit=1000)
    went = {one["subject"] for message in mail.digests for one in message.data["reminders"]}
    went |= {message.subject for message in mail.singles}

    assert {one.subject for one in found if one.status.value == "sent"} == went
    assert len(mail.digests) <= 1
    assert {one.status.value for one in found} <= {"sent", "cancelled"}


NINE: dict[str, Any] = {"rule": "-0d at 09:00", "zone": "recipient"}
ZONES = ("Asia/Tokyo", "America/New_York", "Europe/Berlin", "UTC")


@on_both
async def test_changes_of_a_clock_race_with_puts_and_rules(backend: Backend, app: Duetime) -> None:
    """Whoever comes first, in the end every subject is armed for the recipient's clock."""
    mail = Mail()
    due = datetime(2031, 6, 6, 12, tzinfo=UTC)
    await app.scopes.put("guild", remind=[NINE])

    async def turn_clock() -> None:
        for n in range(12):
            await app.recipients.put("ann", tz=ZONES[n % len(ZONES)])

    async def put(start: int) -> None:
        for n in range(10):
            await app.subjects.put(
                f"game:{start}:{n}", scope="guild", due=due + n * HOUR, recipients=["ann"]
            )

    async def rule() -> None:
        for n in range(6):
            await app.scopes.put("guild", remind=[NINE, "-1h"] if n % 2 else [NINE])

    async with fleet(backend, mail, workers=2):
        await asyncio.gather(turn_clock(), rule(), *(put(n) for n in range(4)))

        async def marked() -> bool:
            sql = "select count(*) from duetime.subject where rearm_at is not null"
            return query(backend, sql) == [(0,)]

        await until(marked)
    zone = (await app.recipients.get("ann")).tz
    armed = [one for one in await app.reminders.list(status="armed", limit=1000) if one.rule.wall]
    offset = {"Asia/Tokyo": 9, "America/New_York": -4, "Europe/Berlin": 2, "UTC": 0}[zone or "UTC"]

    assert len(armed) == 40
    assert {one.time.hour for one in armed} == {(9 - offset) % 24}


@on_postgres
async def test_a_put_that_is_not_committed_when_the_clock_changes(
    backend: Backend, app: Duetime
) -> None:
    """Each cannot see the other's rows: the later one must come right all the same."""
    mail = Mail()
    due = datetime(2031, 6, 6, 12, tzinfo=UTC)
    async with await psycopg.AsyncConnection.connect(backend.url) as first:
        await app.subjects.put("game:1", due=due, remind=[NINE], recipients=["ann"], tx=first)
        turning = asyncio.create_task(app.recipients.put("ann", tz="Asia/Tokyo"))
        await until(lambda: waits(backend.url))
        assert not turning.done(), "it waits for who arms by the old clock"
        await first.commit()
        await turning
    async with await psycopg.AsyncConnection.connect(backend.url) as second:
        await app.recipients.put("ann", tz="America/New_York", tx=second)
        await asyncio.wait_for(
            app.subjects.put("game:2", due=due, remind=[NINE], recipients=["ann"]), 20
        )
        await second.commit()
    async with fleet(backend, mail, workers=1):

        async def right() -> bool:
            found = await app.reminders.list(status="armed", limit=1000)
            return [one.time.hour for one in found] == [13, 13]

        await until(right)
