"""Sends that end at the same moment are recorded together, and none can harm another."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from duetime import Constant, Context, Duetime, Reminder, Sent
from tests.conftest import Backend, query
from tests.counting import Counted
from tests.engine.reminders.test_reminder_races import EVEN_LATE
from tests.waiting import until_true

SHORT: dict[str, Any] = {"lease": "20s", "heartbeat": "1s", "rescue_every": "500ms", "grace": "5s"}
COUNT = 20

on_both = pytest.mark.parametrize("backend", ["postgres15", "sqlite"], indirect=True)
on_postgres = pytest.mark.parametrize("backend", ["postgres15"], indirect=True)


def statuses(backend: Backend) -> dict[str, str]:
    return dict(
        query(
            backend,
            "select s.ref, r.status from duetime.reminder as r"
            " join duetime.subject as s on s.id = r.subject_id",
        )
    )


def sent(backend: Backend) -> int:
    return Counter(statuses(backend).values())["sent"]


def written(backend: Backend, ref: str) -> list[int]:
    """How many deliveries, audit events of a send and attempts there are of a subject."""
    of = "(select r.{} from duetime.reminder as r join duetime.subject as s"
    of += f" on s.id = r.subject_id where s.ref = '{ref}')"
    is_sent = f"entity = 'subject:{ref}' and action = 'reminder.sent'"
    has_ended = f"job_id in {of.format('job_id')} and outcome = 'completed'"
    texts = (
        f"select count(*) from duetime.delivery where reminder_id in {of.format('id')}",
        f"select count(*) from duetime.audit where {is_sent}",
        f"select count(*) from duetime.attempt where {has_ended}",
    )
    return [query(backend, text)[0][0] for text in texts]


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url, migrate=True, **SHORT)
    await app.store()
    yield app
    await app.close()


class Choir:
    """A handler whose calls all end in the same moment, once `go` is set."""

    def __init__(self, app: Duetime) -> None:
        self.keys: Counter[str] = Counter()
        self.go = asyncio.Event()

        @app.on_reminder(retry=Constant("100ms", max_attempts=100))
        async def send(reminder: Reminder, ctx: Context) -> Sent:
            self.keys[ctx.key] += 1
            await self.go.wait()
            return Sent(f"ext-{reminder.id}")

    async def gather(self, app: Duetime) -> None:
        """All of them are being sent, and none has ended."""
        due = datetime.now(UTC) + timedelta(milliseconds=200)
        refs = [f"s{number}" for number in range(COUNT)]
        await app.subjects.put_many(
            [app.subjects.define(r, due=due, remind=EVEN_LATE) for r in refs]
        )
        await until_true(lambda: len(self.keys) == COUNT)


@on_both
async def test_sends_that_end_together_are_recorded_in_one_transaction(
    backend: Backend, app: Duetime
) -> None:
    choir = Choir(app)
    async with app.worker():
        await choir.gather(app)
        choir.go.set()
        await until_true(lambda: sent(backend) == COUNT)
    # What one statement wrote: of one transaction, at one moment.
    column = "xmin::text" if backend.is_postgres else "ended_at"
    [(transactions,)] = query(backend, f"select count(distinct {column}) from duetime.reminder")

    assert transactions == 1
    assert [written(backend, f"s{number}") for number in range(COUNT)] == [[1, 1, 1]] * COUNT
    assert set(choir.keys.values()) == {1}


@on_both
async def test_what_was_sent_is_not_looked_at_again(
    backend: Backend, app: Duetime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is recorded with its job's completion. What ended otherwise is recorded afterwards."""
    records = Counted(await app.store(), monkeypatch, "reminder_record_unsent")
    choir = Choir(app)
    async with app.worker():
        await choir.gather(app)
        choir.go.set()
        await until_true(lambda: sent(backend) == COUNT)

    assert records.ran() == 0


@on_both
async def test_one_that_cannot_be_recorded_harms_no_other(backend: Backend, app: Duetime) -> None:
    """Neither its mark nor its delivery nor its completion stays. Its record is tried again, and
    not the message, which is out."""
    if backend.is_postgres:
        query(
            backend,
            "create function fail() returns trigger language plpgsql as"
            " 'begin raise exception ''no room for the audit''; end';"
            "create trigger broken before insert on duetime.audit for each row when"
            " (new.action = 'reminder.sent' and new.entity = 'subject:s7') execute function fail()",
        )
    else:
        query(
            backend,
            "create trigger broken before insert on duetime.audit"
            " when new.action = 'reminder.sent' and new.entity = 'subject:s7'"
            " begin select raise(abort, 'no room for the audit'); end",
        )
    choir = Choir(app)
    async with app.worker():
        await choir.gather(app)
        choir.go.set()
        await until_true(lambda: sent(backend) == COUNT - 1)
        broken = statuses(backend)["s7"], written(backend, "s7")
        drop = "drop trigger broken" + (" on duetime.audit" * backend.is_postgres)
        await asyncio.to_thread(query, backend, drop)
        await until_true(lambda: sent(backend) == COUNT)
        await until_true(lambda: written(backend, "s7") == [1, 1, 1])

    assert broken == ("armed", [0, 0, 0])
    assert [written(backend, f"s{number}") for number in range(COUNT)] == [[1, 1, 1]] * COUNT
    assert len(choir.keys) == COUNT
    assert set(choir.keys.values()) == {1}


@on_both
async def test_a_job_that_was_lost_harms_no_other(backend: Backend, app: Duetime) -> None:
    """Of the lost one nothing is written; who gets it next sends it with the same key."""
    choir = Choir(app)
    async with app.worker():
        await choir.gather(app)
        [reminder] = await app.reminders.list(subject="s7")
        job = reminder.job_id
        assert job is not None
        if backend.is_postgres:
            query(
                backend,
                "update duetime.claim set job_ids = array_remove(job_ids, s.id),"
                " attempts = attempts[2:] from (select id from duetime.job"
                f" where id = {job}) as s where s.id = any (job_ids)",
            )
        else:
            query(backend, f"delete from duetime.claim where job_id = {job}")
        later = (
            "now() + interval '1 hour'" if backend.is_postgres else f"{time.time() + 3600:.0f}e6"
        )
        query(
            backend,
            "insert into duetime.due (job_id, queue, priority, run_at, attempt)"
            f" values ({job}, 'default', 5, {later}, 1)",
        )
        choir.go.set()
        await until_true(lambda: sent(backend) == COUNT - 1)
        lost = statuses(backend)["s7"], written(backend, "s7")
        await app.jobs.reschedule(job, datetime.now(UTC))
        await until_true(lambda: sent(backend) == COUNT)

    assert lost == ("armed", [0, 0, 0])
    assert [written(backend, f"s{number}") for number in range(COUNT)] == [[1, 1, 1]] * COUNT
    assert {times for key, times in choir.keys.items() if key != reminder.key} == {1}
    assert choir.keys[reminder.key] == 2


@on_postgres
async def test_one_that_is_being_changed_holds_up_no_other(backend: Backend, app: Duetime) -> None:
    choir = Choir(app)
    async with app.worker():
        await choir.gather(app)
        [reminder] = await app.reminders.list(subject="s7")
        with psycopg.connect(backend.url) as other:
            other.execute("select from duetime.reminder where id = %s for update", (reminder.id,))
            choir.go.set()
            await until_true(lambda: sent(backend) == COUNT - 1)
            held = statuses(backend)["s7"]
        await until_true(lambda: sent(backend) == COUNT)

    assert held == "armed"
    assert set(choir.keys.values()) == {1}


@on_both
async def test_one_whose_subject_was_deleted_is_recorded_with_the_others(
    backend: Backend, app: Duetime
) -> None:
    choir = Choir(app)
    async with app.worker():
        await choir.gather(app)
        await app.subjects.delete("s7")
        choir.go.set()
        await until_true(lambda: sent(backend) == COUNT - 1)
        await until_true(lambda: _completed(backend) == COUNT)
    events = [event.action for event in await app.audit.list(entity="subject:s7")]

    assert events.count("reminder.sent") == 1
    assert set(choir.keys.values()) == {1}


@on_both
async def test_who_waits_for_the_job_is_told(backend: Backend, app: Duetime) -> None:
    choir = Choir(app)
    store = await app.store()
    async with app.worker():
        await choir.gather(app)
        [reminder] = await app.reminders.list(subject="s7")
        assert reminder.job_id is not None
        waiting = asyncio.create_task(store.wait_finished(reminder.job_id, 30))
        await asyncio.sleep(0.2)
        assert not waiting.done()
        choir.go.set()
        async with asyncio.timeout(10):
            await waiting


def _completed(backend: Backend) -> int:
    text = "select count(*) from duetime.attempt where outcome = 'completed'"
    count: int = query(backend, text)[0][0]
    return count
