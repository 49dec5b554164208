"""What an activation of a run records, until it is written."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import msgspec

from duetime.domain.flows.flow import NewRecord, StepKind, StepState
from duetime.engine.context import Context
from duetime.engine.executor import code_of_error, describe_exception
from duetime.flows.activity import Activity
from duetime.flows.branches import CallNumbers
from duetime.flows.recorder import Recorder

COMPLETED = StepState.COMPLETED.value
WAITING = StepState.WAITING.value
RETRYING = StepState.RETRYING.value
FAILED = StepState.FAILED.value
SKIPPED = StepState.SKIPPED.value
REGISTERED = StepState.REGISTERED.value
_ENDED = frozenset({COMPLETED, FAILED, SKIPPED})


class Journal:
    """Makes the records of a run, and keeps those that are written with the next one.

    What a record says is handed to the function only once it is committed. So a record that the
    function does not wait for, such as that a sleep is over, need not have a commit of its own.
    """

    def __init__(
        self,
        ctx: Context,
        run_id: int,
        *,
        recorder: Recorder,
        numbers: CallNumbers,
        activity: Activity,
    ) -> None:
        self._ctx = ctx
        self._run_id = run_id
        self._recorder = recorder
        self._numbers = numbers
        self._activity = activity
        self.unwritten: dict[int, NewRecord] = {}
        """What is to be written with the next record, by its number."""
        self.sent: set[int] = set()
        """The numbers of the records that may have been written since the run was loaded."""

    def new_record(
        self,
        seq: int,
        kind: StepKind,
        name: str,
        state: str,
        output: str | None = None,
        attempt: int = 1,
        started: int | None = None,
        *,
        wait: timedelta | None = None,
    ) -> NewRecord:
        now = self._ctx.elapsed_us
        return NewRecord(
            run=self._run_id,
            token=self._ctx.token,
            seq=seq,
            kind=kind,
            name=name,
            state=state,
            attempt=attempt,
            place=self._numbers.place_of(seq),
            output=None if output is None else msgspec.Raw(output.encode()),
            wait=None if wait is None else wait // timedelta(microseconds=1),
            # A compensation that has not run has not started.
            started=None if state in (REGISTERED, SKIPPED) else now if started is None else started,
            finished=now if state in _ENDED else None,
            holder=None if self._run_id == self._ctx.id else self._ctx.id,
        )

    def failed_record(
        self,
        seq: int,
        name: str,
        attempt: int,
        error: BaseException,
        started: int,
        *,
        wait: timedelta | None = None,
    ) -> NewRecord:
        state = FAILED if wait is None else RETRYING
        record = self.new_record(seq, "step", name, state, None, attempt, started, wait=wait)
        record.code, record.error = code_of_error(error), describe_exception(error)
        return record

    def add(self, record: NewRecord) -> None:
        """Write a record with the next one: what it says is not handed on before."""
        self.unwritten[record.seq] = record

    def take(self) -> list[NewRecord]:
        """Return what is left to write, which the caller does."""
        records, self.unwritten = [*self.unwritten.values()], {}
        self.sent.update(record.seq for record in records)
        return records

    async def write(self, *, is_alone: bool = False) -> None:
        """Write what waits to be written; it is committed when this returns. If this is cancelled,
        it may be written or not, so it is written again with the next record."""
        records = self.take()
        try:
            await self._recorder.record(self._ctx, records, is_alone=is_alone)
        except asyncio.CancelledError:
            self.unwritten = {record.seq: record for record in records} | self.unwritten
            raise
        except Exception as error:
            self._activity.interrupt(error)
            raise

    async def write_compensations(self) -> None:
        """Before a function is called: whatever ends the run from now on, what has to be undone is
        recorded."""
        if any(seq < 0 for seq in self.unwritten):
            await self.write()

    async def write_registered(self, compensations: Sequence[tuple[int, str]]) -> None:
        """The run was cancelled: record everything that undoes it. What was to be written later is
        not written any more, and `finish` may have recorded that nothing is to be undone."""
        records = [
            self.new_record(seq, "compensation", name, REGISTERED) for seq, name in compensations
        ]
        if records:
            await self._recorder.record(self._ctx, records)
