"""One activation of a run: its function is called from the beginning, and what it did is replayed.

Each call of the function takes the next number, and what is recorded under it, from the `Replay`;
`steps` then does what that kind of call does. The parts of it, each with a state of its own:

- `numbers` (`branches`): which call of which branch is recorded under which number;
- `turns`: in which order recorded calls return;
- `activity`: which calls run and which wait, and when the run is therefore suspended;
- `journal`: what is recorded, until it is written;
- `cancellation`: what happens if the function is cancelled while a call is recorded;
- `failed_calls` (`repeats`): which calls a retry of the run makes again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from duetime.domain.flows.flow import LoadedRun, NewRecord, StepKind, StepRecord
from duetime.domain.jobs.outcome import Discard, Snooze
from duetime.engine.context import Context
from duetime.engine.executor import RetryPolicyFailed
from duetime.errors import FlowChanged
from duetime.flows.activity import Activity
from duetime.flows.branches import Branch, CallNumbers, current_branch
from duetime.flows.calls import Policy, StepFunction, retry_after, running_step
from duetime.flows.cancellation import Cancellation
from duetime.flows.journal import COMPLETED, REGISTERED, RETRYING, SKIPPED, Journal
from duetime.flows.recorder import Recorder
from duetime.flows.repeats import FailedCalls
from duetime.flows.turns import Turns
from duetime.flows.unwinding import Replayed


class Compensation(NamedTuple):
    """What undoes something, if the run fails."""

    seq: int
    called: StepFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Replay:
    """What a run has recorded, and what it records and waits for until it ends or suspends."""

    def __init__(
        self,
        ctx: Context,
        *,
        recorder: Recorder,
        loaded: LoadedRun,
        policy: Policy,
        run_id: int | None = None,
    ) -> None:
        self.ctx = ctx
        self.run_id = ctx.id if run_id is None else run_id
        self.recorder = recorder
        self.records = loaded.steps
        self.signals = loaded.signals
        self.policy = policy
        self.compensations: list[Compensation] = []
        """Those that the function has registered, in their order."""
        self._main = Branch("", asyncio.current_task())
        self._called: set[int] = set()
        self.numbers = CallNumbers(self.records)
        self.turns = Turns(self.records, in_tasks=self.numbers.are_in_tasks())
        self.activity = Activity(ctx, self._main, self.turns)
        self.journal = Journal(
            ctx, self.run_id, recorder=recorder, numbers=self.numbers, activity=self.activity
        )
        self.cancellation = Cancellation(ctx)
        self._failed_calls = FailedCalls(self.numbers)
        failed = self.records.get(0)
        self._failures = 0 if failed is None else failed.attempt
        self.is_early = False
        """The function failed, and the pause before it is tried again is not over: something else
        woke the run."""
        if failed is not None and failed.state == RETRYING:
            self.is_early = not failed.is_due
            if failed.is_due:
                self.journal.add(
                    self.journal.new_record(
                        0, "error", failed.name, COMPLETED, None, failed.attempt
                    )
                )

    # A call begins

    def call(self, kind: StepKind, name: str) -> tuple[int, StepRecord | None]:
        """Take the next number, and what is recorded under it."""
        if self.activity.interruption is not None:
            raise self.activity.interruption
        here = self.branch()
        seq, record = self._next(here)
        while record is not None and record.kind == "version" and kind != "version":
            # Code that no longer asks for a version is newer than it.
            seq, record = self._next(here)
        if record is not None and (record.kind, record.name) != (kind, name):
            raise self._changed(seq, f"{record.kind} {record.name!r}", f"{kind} {name!r}")
        if record is not None and record.was_stopped:
            record = None
        return seq, record

    def branch(self) -> Branch:
        """The branch that makes a call. A task that was made by other means than `gather` becomes
        one when it makes its first call."""
        step = running_step()
        if step is not None and step.run_id == self.run_id:
            # Another attempt would make it again.
            raise Discard(
                "A step cannot make calls of its flow: a replay would not make them again. Make "
                "them in the flow's own function."
            )
        task = asyncio.current_task()
        branch = self._current_branch()
        if branch.task is not task:
            branch = branch.fork()
            branch.task = task
            current_branch.set(branch)
            self.turns.add_task()
        return branch

    def enter(self, branch: Branch) -> None:
        """The current task makes the calls of a branch."""
        branch.task = asyncio.current_task()
        self.activity.moves += 1
        current_branch.set(branch)

    def _current_branch(self) -> Branch:
        branch = current_branch.get()
        return self._main if branch is None or branch.main is not self._main else branch

    def _next(self, branch: Branch) -> tuple[int, StepRecord | None]:
        branch.calls += 1
        self.activity.moves += 1
        if self.cancellation.postponed and branch.task is not None:
            self.cancellation.postponed.discard(branch.task)
        seq = self.numbers.of_call(branch, branch.calls)
        self._called.add(seq)
        return seq, self.records.get(seq)

    def _changed(self, seq: int, recorded: str, called: str) -> FlowChanged:
        """The code makes another call than the one that is recorded. Returns the error to raise."""
        error = FlowChanged(self.run_id, seq=seq, recorded=recorded, called=called)
        self.activity.interrupt(error)
        return error

    async def in_turn(self, *records: StepRecord | None) -> None:
        """Wait until a call with these records may return, raise or begin. Raises `Replayed` if it
        has not ended and the function only replays."""
        if self.turns.is_behind and self._is_awaited_by_another():
            self.turns.add_task()
        turn = self.turns.line_up(records) if records else None
        if turn is None:
            return
        try:
            await self.activity.wait_for_turn(turn)
        except asyncio.CancelledError as error:
            # The branch was cut off while it recorded the call, and has received the result. It has
            # not received that of a job, which may have ended at any time since.
            is_received = all(one and one.has_ended and one.job_id is None for one in records)
            if not (is_received and self.is_stopped_by(error)):
                raise
            self.cancellation.postpone()
        if self.turns.only_replays and not all(one and one.is_over for one in records):
            raise Replayed

    def _is_awaited_by_another(self) -> bool:
        """Whether the current task awaits a call that its branch has made: the function may depend
        on which of these calls ends first."""
        task = asyncio.current_task()
        return self._current_branch().task is not task and task not in self.turns.unordered_tasks

    def register(
        self, called: StepFunction, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> None:
        """Register the next compensation of a branch."""
        if self.activity.interruption is not None:
            raise self.activity.interruption
        if self.cancellation.has_been_raised():
            return
        branch = self.branch()
        branch.compensations += 1
        seq = self.numbers.of_compensation(branch, branch.compensations)
        record = self.records.get(seq)
        if record is not None and record.name != called.name:
            recorded, now = f"compensation {record.name!r}", f"on_failure {called.name!r}"
            raise self._changed(seq, recorded, now)
        self.compensations.append(Compensation(seq, called, args, kwargs))
        if record is None:
            self.journal.add(self.journal.new_record(seq, "compensation", called.name, REGISTERED))

    # A call ends

    async def record(self, record: NewRecord) -> None:
        """Write a record, and what waits to be written; it is committed when this returns."""
        self.journal.add(record)
        try:
            await self.journal.write(is_alone=self.activity.is_one_call)
        except asyncio.CancelledError as error:
            if not self.is_stopped_by(error):
                raise
            # The call has happened, and is recorded or not.
            await self.journal.write()
            self.cancellation.postpone()

    async def record_value(self, record: NewRecord) -> None:
        """Write the record of a call that does nothing else."""
        self.activity.start()
        try:
            await self.record(record)
        finally:
            self.activity.stop()

    async def block(self, *calls: int) -> None:
        """Wait for something outside of this process: the run goes on in another activation."""
        if self.activity.interruption is not None:
            raise self.activity.interruption
        if self.activity.is_running and self.journal.unwritten:
            # Other branches still run: the wait begins now, not when they are done.
            self.activity.start()
            try:
                await self.journal.write()
            finally:
                self.activity.stop()
        await self.activity.wait(*calls)

    def call_failed(self, seq: int) -> None:
        """A call raises `StepFailed` or `SignalTimeout`."""
        self._failed_calls.add(seq, self._current_branch())

    def is_stopped_by(self, error: BaseException) -> bool:
        """Whether the call is cancelled because the run, its time or a task group ends."""
        return self.cancellation.has_stopped(self._current_branch(), error)

    # The function ends

    def finish(self) -> list[NewRecord]:
        """The function returned: what is left to write. Nothing has to be undone any more."""
        self._check_finished()
        # Also those that the function does not register any more, since its code has changed.
        stored = {seq: record.name for seq, record in self.records.items() if seq < 0}
        for compensation in self.compensations:
            if compensation.seq in self.journal.sent:
                stored[compensation.seq] = compensation.called.name
            else:
                self.journal.unwritten.pop(compensation.seq, None)
        for seq, name in stored.items():
            self.journal.add(self.journal.new_record(seq, "compensation", name, SKIPPED))
        return self.journal.take()

    def _check_finished(self) -> None:
        """Nothing may be recorded that the function did not come to."""
        later = [
            record
            for record in self.records.values()
            if record.seq > 0 and record.seq not in self._called and record.kind != "version"
        ]
        if later:
            record = min(later, key=lambda record: record.seq)
            recorded = f"{record.kind} {record.name!r}"
            raise FlowChanged(self.run_id, seq=record.seq, recorded=recorded, called=None)

    def fail(self, error: BaseException) -> list[NewRecord]:
        """The run fails for good: what is left to write, and which calls a retry makes again."""
        journal, attempt = self.journal, self._failures + 1
        record = journal.failed_record(0, "flow", attempt, error, self.ctx.elapsed_us)
        repeated = self._failed_calls.to_repeat(error)
        record.kind, record.output = "failure", msgspec.Raw(msgspec.json.encode(repeated))
        journal.add(record)
        return journal.take()

    def retry_later(self, error: BaseException) -> BaseException | None:
        """The function itself raised an error: have it run again later, unless its attempts are
        used up. Returns the error with which it fails then."""
        attempt = self._failures + (not isinstance(error, Snooze))
        try:
            wait = retry_after(self.policy, attempt, error)
        except RetryPolicyFailed as failed:
            return failed
        if wait is None:
            return error
        record = self.journal.failed_record(
            0, "flow", attempt, error, self.ctx.elapsed_us, wait=wait
        )
        record.kind = "error"
        self.journal.add(record)
        return None

    async def record_compensations(self) -> None:
        """The run was cancelled: record everything that undoes it."""
        await self.journal.write_registered(
            [(one.seq, one.called.name) for one in self.compensations]
        )
