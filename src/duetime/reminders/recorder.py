"""Sends that end close to each other are recorded together, in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from duetime.domain.jobs.job import NewJob
from duetime.domain.reminders.delivery import HANDLER
from duetime.engine.batching import Batcher
from duetime.engine.context import Context
from duetime.errors import ClaimLost
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.reminders.sends import SendStatements, SentReminder
from duetime.storage.store import Dialect, Statements, Store
from duetime.telemetry.events import log_event

if TYPE_CHECKING:
    from duetime.app import Duetime

log = logging.getLogger("duetime.worker")

Answer = Literal["recorded", "lost", "alone"]

_FIRST_WAIT_SECONDS = 0.1
_MAX_WAIT_SECONDS = 5.0


class Record(NamedTuple):
    """All that a send leaves behind: as one, or not at all."""

    sent: SentReminder
    follow_up: NewJob | None
    """The job that escalates, if nobody acknowledges it."""
    ctx: Context


class Recorder:
    """Records sends with their audit events, follow-ups and the completion of their jobs."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._records: Batcher[Record, Answer] = Batcher(self._together, wait_on_cancel=True)

    async def record(self, record: Record) -> None:
        """Record one send; raise `ClaimLost` if its job is not ours any more."""
        completed = record.ctx.completed
        await record_surely(record.ctx, lambda: self._record(record, completed=completed))

    def record_in(self, dialect: Dialect, record: Record) -> Statements:
        """Record one send in the transaction in which its handler completes the job."""
        return _write_alone(SendStatements(dialect), self._app._unopened(), record)

    async def _record(self, record: Record, *, completed: bool) -> None:
        """`completed`: by the handler, and so recorded, if that was committed."""
        store = await self._app.store()
        ctx = record.ctx
        if completed:
            await self._app._perform(lambda d: _write_after(SendStatements(d), store, record))
            return
        answer = await self._records.submit(record)
        if answer == "lost":
            raise ClaimLost(ctx.job.id, ctx.job.token)
        if answer == "alone":
            async with ctx.transaction() as connection:
                await self._app._perform(
                    lambda d: _write_alone(SendStatements(d), store, record), connection
                )

    async def _together(self, records: list[Record]) -> Sequence[Answer]:
        """Record what can be, in one transaction. If that fails, each is recorded alone, so that
        it fails for nobody but whose fault it is."""
        store = await self._app.store()
        try:
            answers: list[Answer] = await self._app._perform(
                lambda d: _finish_and_write(SendStatements(d), store, records)
            )
        except Exception:  # noqa: BLE001 -- the one that caused it raises it again when it is recorded alone.
            return ["alone"] * len(records)
        for record, answer in zip(records, answers, strict=True):
            if answer == "recorded":
                record.ctx.committed = True
        return answers


async def record_surely(ctx: Context, record: Callable[[], Awaitable[None]]) -> None:
    """Record what was sent, however often that takes: a message must not be sent again because its
    record was refused. It ends with the lease, or when the job is stopped."""
    wait = _FIRST_WAIT_SECONDS
    while True:
        try:
            return await record()
        except ClaimLost:
            raise
        except Exception as error:  # noqa: BLE001 -- whatever it is, the message is out.
            log_event(
                log,
                logging.WARNING,
                "send_not_recorded",
                "Job %(job_id)s of task %(task)s sent its message, but could not record that "
                "and tries again: %(error)s",
                job_id=ctx.job.id,
                task=ctx.job.task,
                error=str(error),
            )
        await asyncio.sleep(wait)
        wait = min(2 * wait, _MAX_WAIT_SECONDS)


def _finish_and_write(
    statements: SendStatements, store: Store, records: Sequence[Record]
) -> Statements:
    """Each is fenced by itself: of a job that was lost nothing is written."""
    free = yield from statements.free([record.sent.reminder.id for record in records])
    ours = [record for record in records if record.sent.reminder.id in free]
    answers: dict[int, Answer] = {}
    if ours:
        accepted = yield from store.finish_many_in([record.ctx._finished(None) for record in ours])
        for record, is_ours in zip(ours, accepted, strict=True):
            answers[id(record)] = "recorded" if is_ours else "lost"
            if is_ours:
                # If the answer to the commit is lost, a second completion is no surprise.
                record.ctx.completed = True
        kept = [record for record in ours if answers[id(record)] == "recorded"]
        yield from _write(statements, store, kept)
    # Another transaction changes the others just now, or has deleted them: they wait alone.
    return [answers.get(id(record), "alone") for record in records]


def _write_alone(statements: SendStatements, store: Store, record: Record) -> Statements:
    yield from statements.hold([record.sent.reminder.id])
    yield from _write(statements, store, [record])


def _write_after(statements: SendStatements, store: Store, record: Record) -> Statements:
    """The handler has completed the job, which has recorded the send if that was committed: then
    only the receiver's id is new."""
    reminder = record.sent.reminder
    yield from statements.hold([reminder.id])
    for known in (yield from statements.deliveries(reminder.id)):
        if (known.channel, known.round) == (HANDLER, reminder.snoozes) and known.sent_at:
            [sent] = record.sent.deliveries
            yield from statements.provider_id(known, sent["external_id"])
            return
    yield from _write(statements, store, [record])


def _write(statements: SendStatements, store: Store, records: Sequence[Record]) -> Statements:
    if records and (early := (yield from statements.record([one.sent for one in records]))):
        yield from DeliveryStatements(statements.dialect).apply_early(early)
    if jobs := [record.follow_up for record in records if record.follow_up is not None]:
        yield from store.enqueue_in(jobs)
