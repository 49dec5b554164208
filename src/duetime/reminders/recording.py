"""Sends that end close to each other are recorded together, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, NamedTuple

from duetime.domain.job import EndedJob, NewJob
from duetime.engine.context import Context
from duetime.errors import ClaimLost
from duetime.reminders.deliveries import perform
from duetime.reminders.gathering import Gathering
from duetime.storage.deliveries import DeliveryStatements
from duetime.storage.sends import Handed
from duetime.storage.store import Statements, Store

if TYPE_CHECKING:
    from duetime.app import Duetime

Answer = Literal["recorded", "lost", "alone"]


class Record(NamedTuple):
    """All that a send leaves behind: as one, or not at all."""

    handed: Handed
    follow_up: NewJob | None
    """The job that escalates, if nobody acknowledges it."""
    ctx: Context
    ended: EndedJob


class Recorder:
    """Records sends with their audit events, follow-ups and the completion of their jobs."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._records: Gathering[Record, Answer] = Gathering(self._together, lasting=True)

    async def record(self, handed: Handed, follow_up: NewJob | None, ctx: Context) -> None:
        """Record one send; raise `ClaimLost` if its job is not ours any more."""
        record = Record(handed, follow_up, ctx, ctx._ended(None))
        store = await self._app.store()
        if ctx.completed:
            # The handler has completed the job in a transaction of its own.
            await perform(self._app, lambda s: _write_alone(s, store, record))
            return
        answer = await self._records.get(record)
        if answer == "lost":
            raise ClaimLost(ctx.job.id, ctx.job.token)
        if answer == "alone":
            async with ctx.transaction() as connection:
                await perform(self._app, lambda s: _write_alone(s, store, record), connection)

    async def _together(self, records: list[Record]) -> Sequence[Answer]:
        """Record what can be, in one transaction. If that fails, each is recorded alone, so that
        it fails for nobody but whose fault it is."""
        store = await self._app.store()
        try:
            answers: list[Answer] = await perform(
                self._app, lambda s: _finish_and_write(s, store, records)
            )
        except Exception:  # noqa: BLE001 -- whose it is, tells it when it is recorded alone.
            return ["alone"] * len(records)
        for record, answer in zip(records, answers, strict=True):
            if answer == "recorded":
                record.ctx.committed = True
        return answers


def _finish_and_write(
    statements: DeliveryStatements, store: Store, records: Sequence[Record]
) -> Statements:
    """Each is fenced by itself: of a job that was lost nothing is written."""
    free = yield from statements.free([record.handed.reminder.id for record in records])
    ours = [record for record in records if record.handed.reminder.id in free]
    answers: dict[int, Answer] = {}
    if ours:
        accepted = yield from store.finish_many_in([record.ended for record in ours])
        for record, is_ours in zip(ours, accepted, strict=True):
            answers[id(record)] = "recorded" if is_ours else "lost"
            if is_ours:
                # If the answer to the commit is lost, a second completion is no surprise.
                record.ctx.completed = True
        kept = [record for record in ours if answers[id(record)] == "recorded"]
        yield from _write(statements, store, kept)
    # Another transaction changes the others just now, or has deleted them: they wait alone.
    return [answers.get(id(record), "alone") for record in records]


def _write_alone(statements: DeliveryStatements, store: Store, record: Record) -> Statements:
    yield from statements.hold([record.handed.reminder.id])
    yield from _write(statements, store, [record])


def _write(statements: DeliveryStatements, store: Store, records: Sequence[Record]) -> Statements:
    if records:
        yield from statements.record([record.handed for record in records])
    if jobs := [record.follow_up for record in records if record.follow_up is not None]:
        yield from store.enqueue_in(jobs)
