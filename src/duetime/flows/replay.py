"""One activation of a run: which call comes next, what is recorded of it, and when to suspend."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, NamedTuple

import msgspec

from duetime.domain.flows.flow import (
    BRANCH_CALLS,
    RUN_ENDED,
    LoadedRun,
    NewRecord,
    StepKind,
    StepRecord,
    StepState,
)
from duetime.domain.jobs.outcome import Discard, Outcome, Retry, Snooze
from duetime.domain.jobs.retry import RetryPolicy
from duetime.engine.context import Context
from duetime.engine.executor import (
    RetryPolicyFailed,
    code_of_error,
    delay_of_retry,
    describe_exception,
    is_cancelled,
    is_retryable,
)
from duetime.errors import (
    ClaimLost,
    FlowChanged,
    SignalTimeout,
    StepFailed,
    TransientError,
)
from duetime.flows.calls import StepFunction, running_step
from duetime.flows.recorder import Recorder

COMPLETED = StepState.COMPLETED.value
WAITING = StepState.WAITING.value
RETRYING = StepState.RETRYING.value
FAILED = StepState.FAILED.value
SKIPPED = StepState.SKIPPED.value
REGISTERED = StepState.REGISTERED.value
_OVER = frozenset({COMPLETED, FAILED, SKIPPED})
_TURNS = 3
"""A function waits once it did nothing for so many turns of the event loop: what `gather` has just
made needs one to start."""
_TURNS_OF_BRANCHES = 12
"""An error needs two for each task group that it ends, one in the other."""
_IN_TASK = "*"
"""Ends the places of calls in a branch that was not made by `gather`."""
RANDOM = random.Random()
"""One for all runs: to seed one costs 17 µs."""

Policy = tuple[RetryPolicy, tuple[type[BaseException], ...]]


class Suspended(BaseException):
    """Unwinds a flow's function: it waits for something that has not happened yet."""


class Replayed(BaseException):
    """Unwinds a flow's function that only replays: nothing more is recorded."""


class Compensation(NamedTuple):
    """What undoes something, if the run fails."""

    seq: int
    called: StepFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


class Branch:
    """An asyncio task that makes calls of a flow, one after the other.

    How fast branches get on differs from one activation to the next, so each counts its own calls.
    """

    __slots__ = (
        "branches", "calls", "compensations", "gathered", "mark", "parent", "path", "replay",
        "task",
    )  # fmt: skip

    def __init__(
        self,
        replay: Replay,
        path: str,
        task: asyncio.Task[Any] | None,
        parent: Branch | None = None,
    ) -> None:
        self.replay = replay
        self.parent = parent
        self.path = path
        """Empty for the function itself; else a number for each level: `2`, `2.1`."""
        self.task = task
        self.mark = "" if parent is None else _IN_TASK
        self.calls = 0
        self.compensations = 0
        self.branches = 0
        self.gathered: list[str] = []
        """The branches that this one has made by `gather`, by their paths."""

    def fork(self) -> Branch:
        self.branches += 1
        return Branch(self.replay, f"{self.path}.{self.branches}".lstrip("."), None, self)

    def gather(self) -> Branch:
        branch = self.fork()
        branch.mark = ""
        self.gathered.append(branch.path)
        return branch

    def progress(self) -> Progress:
        """How far this branch has got, and those that wait for it."""
        progress: Progress = {}
        branch: Branch | None = self
        while branch is not None:
            progress[branch] = branch.calls, len(branch.gathered)
            branch = branch.parent
        return progress


Progress = dict[Branch, tuple[int, int]]
"""How many calls branches have made, and how many branches by `gather`."""

current_branch: ContextVar[Branch | None] = ContextVar("duetime_flow_branch", default=None)


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
        self.only_replays = False
        self.compensations: list[Compensation] = []
        self.recorder = recorder
        self.records = loaded.steps
        self.signals = loaded.signals
        self.policy = policy
        self.main = Branch(self, "", asyncio.current_task())
        self._called: set[int] = set()
        self._place_of = {
            seq: record.place for seq, record in self.records.items() if record.place is not None
        }
        """Where calls in branches are made, as it is recorded."""
        self._places = {place.removesuffix(_IN_TASK): seq for seq, place in self._place_of.items()}
        """The numbers of calls in branches, by where they are made."""
        self._last_in_branches = max([BRANCH_CALLS, *self._place_of])
        self._last_compensation = min([0, *self.records])
        self._active = 0
        self.moves = 0
        """Counts the calls and branches that began, and the calls that ended: whether the function
        gets on."""
        self._is_watched = False
        self._blocked: dict[asyncio.Future[None], tuple[int, ...]] = {}
        """What ends the wait of a branch, and the calls that it waits for."""
        self._is_behind = bool(self.records)
        """The function may not have come to all that is recorded."""
        self._order: dict[int, int] | None = None
        """The place of each call in the order in which they ended, if they have to be replayed in
        that order."""
        self._ended_calls: list[tuple[int, asyncio.Future[None]]] = []
        """A heap of the calls that wait for their turn, by their places."""
        self._open_calls: list[asyncio.Future[None]] = []
        """Those that have not ended, whose turn is after all others."""
        self._cancelled_next: set[asyncio.Task[Any]] = set()
        """Branches in which a cancellation is raised when they wait next."""
        self.limit: asyncio.Timeout | None = None
        """What cancels the function when its time is up."""
        self.suspending = False
        self.interruption: BaseException | None = None
        """What ends this activation, though not the run. The function cannot handle it: every later
        call raises it again, and so does the end of the function."""
        self._failed_calls: dict[int, Progress] = {}
        """The calls that raised an error of theirs, and how far the function had got on then."""
        self.unrecorded: dict[int, NewRecord] = {}
        """What is to be written with the next record, by its number."""
        self._sent: set[int] = set()
        """The numbers of the records that may have been written since the run was loaded."""
        failed = self.records.get(0)
        self._failures = 0 if failed is None else failed.attempt
        self.is_early = False
        """The function failed, and the pause before it is tried again is not over: something else
        woke the run."""
        if failed is not None and failed.state == RETRYING:
            self.is_early = not failed.is_due
            if failed.is_due:
                self.record_later(
                    self.new_record(0, "error", failed.name, COMPLETED, None, failed.attempt)
                )
        in_tasks = any(place.endswith(_IN_TASK) for place in self._place_of.values())
        if in_tasks or any(map(_raises, self.records.values())):
            self._keep_order()

    # Calls

    def call(self, kind: StepKind, name: str) -> tuple[int, StepRecord | None]:
        """Take the next number, and what is recorded under it."""
        if self.interruption is not None:
            raise self.interruption
        here = self.branch()
        seq, record = self._next(here)
        while record is not None and record.kind == "version" and kind != "version":
            # Code that no longer asks for a version is newer than it.
            seq, record = self._next(here)
        if record is not None and (record.kind, record.name) != (kind, name):
            raise self.changed(seq, f"{record.kind} {record.name!r}", f"{kind} {name!r}")
        if record is not None and _is_stopped(record):
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
        branch = self._current()
        if branch.task is not task:
            branch = branch.fork()
            branch.task = task
            current_branch.set(branch)
            if self._is_behind and self._order is None:
                self._keep_order()
        return branch

    def _current(self) -> Branch:
        branch = current_branch.get()
        return self.main if branch is None or branch.replay is not self else branch

    def _next(self, branch: Branch) -> tuple[int, StepRecord | None]:
        branch.calls += 1
        self.moves += 1
        if self._cancelled_next and branch.task is not None:
            self._cancelled_next.discard(branch.task)
        seq = self.number(branch, branch.calls)
        self._called.add(seq)
        return seq, self.records.get(seq)

    def number(self, branch: Branch, call: int) -> int:
        """The number under which this call of a branch is recorded, or will be."""
        if branch is self.main:
            return call
        place = f"{branch.path}:{call}"
        seq = self._places.get(place)
        if seq is None:
            self._last_in_branches += 1
            seq = self._places[place] = self._last_in_branches
            self._place_of[seq] = place + branch.mark
        return seq

    def has_passed(self, branch: Branch) -> bool:
        """Whether anything is recorded that this branch does after its last call: a call, one in a
        branch that it makes, or one of a branch that waits for it."""
        here: Branch | None = branch
        while here is not None:
            inner = f"{here.path}.".lstrip(".")
            for seq in self.records:
                place = self._place_of.get(seq, f":{seq}").removesuffix(_IN_TASK)
                path, _, call = place.partition(":")
                if seq <= 0 or not f"{path}.".startswith(inner):
                    continue
                made = path.removeprefix(inner).partition(".")[0]
                if int(call) > here.calls if path == here.path else int(made) > here.branches:
                    return True
            above = here.parent
            # Any other task goes on while this one runs.
            here = above if above is not None and here.path in above.gathered else None
        return False

    def next_compensation(self) -> tuple[int, StepRecord | None]:
        """Take the number of this branch's next compensation, and what is recorded of it."""
        branch = self.branch()
        branch.compensations += 1
        place = f"{branch.path}!{branch.compensations}"
        seq = self._places.get(place)
        if seq is None:
            self._last_compensation -= 1
            seq = self._places[place] = self._last_compensation
            self._place_of[seq] = place + branch.mark
        return seq, self.records.get(seq)

    def is_cut_off(self) -> bool:
        """Whether a cancellation was raised in this branch: a replay does not come here."""
        task = asyncio.current_task()
        return bool(task and task.cancelling()) and task not in self._cancelled_next

    # The order of outcomes

    def replay_only(self) -> None:
        """The run ends or has ended: the function is called for its compensations alone."""
        self.only_replays = True
        self._keep_order()

    def _keep_order(self) -> None:
        """Replay calls in the order in which they ended.

        The results of all are there at once. But an error that ends a task group cuts the other
        branches off: each must have got as far as it had then, and no further. `gather` waits for
        all of its branches, whatever their order.
        """
        ended = [seq for seq, record in self.records.items() if record.state in _OVER]
        self._order = {seq: place for place, seq in enumerate(ended)}

    async def in_turn(self, *records: StepRecord | None) -> None:
        """Wait until a call with these records may return, raise or begin. Raises `Replayed` if it
        has not ended and the function only replays."""
        order = self._order
        if order is None or not records:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places = [order[one.seq] for one in records if one is not None and one.seq in order]
        is_ended = len(places) == len(records)
        if is_ended:
            heapq.heappush(self._ended_calls, (max(places), turn))
        else:
            self._open_calls.append(turn)
        self._watch()
        self._active += 1
        try:
            await turn
        except asyncio.CancelledError as error:
            # The branch was cut off while it recorded the call, and has received the result. It has
            # not received that of a job, which may have ended at any time since.
            is_received = all(one is not None and one.job_id is None for one in records)
            if not (is_received and is_ended and self.is_stopped_by(error)):
                raise
            self.cancel_next()
        finally:
            self.stop()
        if self.only_replays and not all(map(is_over, records)):
            raise Replayed

    def _next_turn(self) -> None:
        """Let the next call go on, or all that have not ended if no other waits."""
        while self._ended_calls:
            _, turn = heapq.heappop(self._ended_calls)
            # It may be in a branch that was cut off.
            if not turn.done():
                turn.set_result(None)
                return
        if not self.only_replays:
            self._order, self._is_behind = None, False
        for turn in self._open_calls:
            if not turn.done():
                turn.set_result(None)
        self._open_calls.clear()

    # The end of the function

    def finish(self) -> list[NewRecord]:
        """The function returned: what is left to write. Nothing has to be undone any more."""
        self._check_finished()
        # Also those that the function does not register any more, since its code has changed.
        stored = {seq: record.name for seq, record in self.records.items() if seq < 0}
        for compensation in self.compensations:
            if compensation.seq in self._sent:
                stored[compensation.seq] = compensation.called.name
            else:
                self.unrecorded.pop(compensation.seq, None)
        for seq, name in stored.items():
            self.record_later(self.new_record(seq, "compensation", name, SKIPPED))
        return self.take_unrecorded()

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
        record = self.failed_record(0, "flow", self._failures + 1, error, self.ctx.elapsed_us)
        repeated = sorted(self._calls_to_repeat(error))
        record.kind, record.output = "failure", msgspec.Raw(msgspec.json.encode(repeated))
        self.record_later(record)
        return self.take_unrecorded()

    def call_failed(self, seq: int) -> None:
        """A call raises `StepFailed` or `SignalTimeout`."""
        self._failed_calls[seq] = self._current().progress()

    def _calls_to_repeat(self, error: BaseException) -> set[int]:
        """The calls whose errors ended the run, and those that the function made because of them,
        such as one that notifies somebody before the error is raised again.

        After any other error that it handled, the function has made another call.
        """
        repeated: set[int] = set()
        for last in _failed_calls(error) or {None}:
            until: Progress = {} if last is None else self._failed_calls.get(last, {})
            for seq, progress in self._failed_calls.items():
                if seq == last or all(
                    reached == until.get(branch, (branch.calls, len(branch.gathered)))
                    for branch, reached in progress.items()
                ):
                    repeated.add(seq)
                    repeated |= self._calls_since(progress)
        return repeated

    def _calls_since(self, progress: Progress) -> set[int]:
        places = [
            f"{branch.path}:{call}"
            for branch, (calls, _) in progress.items()
            for call in range(calls + 1, branch.calls + 1)
        ]
        branches = tuple(
            end
            for branch, (_, gathered) in progress.items()
            for path in branch.gathered[gathered:]
            for end in (f"{path}:", f"{path}.")
        )
        places += [place for place in self._places if branches and place.startswith(branches)]
        calls = [int(place[1:]) if place[0] == ":" else self._places.get(place) for place in places]
        return {seq for seq in calls if seq is not None and seq > 0}

    def retry_later(self, error: BaseException) -> BaseException | None:
        """The function itself raised an error: have it run again later, unless its attempts are
        used up. Returns the error with which it fails then."""
        attempt = self._failures + (not isinstance(error, Snooze))
        try:
            wait = self.retry_after(self.policy, attempt, error)
        except RetryPolicyFailed as failed:
            return failed
        if wait is None:
            return error
        record = self.failed_record(0, "flow", attempt, error, self.ctx.elapsed_us, wait=wait)
        record.kind = "error"
        self.record_later(record)
        return None

    # Records

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
        now = self.ctx.elapsed_us
        return NewRecord(
            run=self.run_id,
            token=self.ctx.token,
            seq=seq,
            kind=kind,
            name=name,
            state=state,
            attempt=attempt,
            place=self._place_of.get(seq),
            output=None if output is None else msgspec.Raw(output.encode()),
            wait=None if wait is None else wait // timedelta(microseconds=1),
            # A compensation that has not run has not started.
            started=None if state in (REGISTERED, SKIPPED) else now if started is None else started,
            finished=now if state in _OVER else None,
            holder=None if self.run_id == self.ctx.id else self.ctx.id,
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

    async def record(self, record: NewRecord) -> None:
        """Write a record, and what waits to be written; it is committed when this returns."""
        self.record_later(record)
        try:
            await self.write(is_alone=self._active == 1 and not self._blocked)
        except asyncio.CancelledError as error:
            if not self.is_stopped_by(error):
                raise
            # The call has happened, and is recorded or not.
            await self.write()
            self.cancel_next()

    async def write(self, *, is_alone: bool = False) -> None:
        """Write what waits to be written. If this is cancelled, it may be written or not, so it is
        written again with the next record."""
        records = self.take_unrecorded()
        try:
            await self.recorder.record(self.ctx, records, is_alone=is_alone)
        except asyncio.CancelledError:
            self.unrecorded = {record.seq: record for record in records} | self.unrecorded
            raise
        except Exception as error:
            self.interrupt(error)
            raise

    def is_stopped_by(self, error: BaseException) -> bool:
        """Whether the function is cancelled because the run is, or because its time is up; or one
        of its branches because a task group ends."""
        if not isinstance(error, asyncio.CancelledError) or not is_cancelled(error):
            return False
        branch = self._current()
        made_tasks = branch is self.main or branch.branches > len(branch.gathered)
        if not (made_tasks and branch.task is asyncio.current_task()):
            return True
        # It may be the body of a task group, which does not end by the cancellation: Python before
        # 3.13 would raise it again after the group.
        return self.ctx.cancel_requested or (self.limit is not None and self.limit.expired())

    def cancel_next(self) -> None:
        """The function was cancelled during a call that has happened. It has to learn of the call,
        to register what undoes it: it is cancelled where it waits next."""
        task = asyncio.current_task()
        assert task is not None
        self._cancelled_next.add(task)
        task.uncancel()
        task.cancel()

    async def register_compensations(self) -> None:
        """The run was cancelled: record everything that undoes it. What was to be written later is
        not written any more, and `finish` may have recorded that nothing is to be undone."""
        records = [
            self.new_record(one.seq, "compensation", one.called.name, REGISTERED)
            for one in self.compensations
        ]
        if records:
            await self.recorder.record(self.ctx, records)

    async def record_compensations(self) -> None:
        """Before a function is called: whatever ends the run from now on, what has to be undone is
        recorded."""
        if any(seq < 0 for seq in self.unrecorded):
            await self.write()

    async def record_active(self, record: NewRecord) -> None:
        self.start()
        try:
            await self.record(record)
        finally:
            self.stop()

    def record_later(self, record: NewRecord) -> None:
        """Write a record together with the next one; until then its result is not returned."""
        self.unrecorded[record.seq] = record

    def take_unrecorded(self) -> list[NewRecord]:
        records, self.unrecorded = [*self.unrecorded.values()], {}
        self._sent.update(record.seq for record in records)
        return records

    def retry_after(self, given: Policy, attempt: int, error: BaseException) -> timedelta | None:
        """How long to wait before the next attempt, or None if it is not tried again. Raises
        `RetryPolicyFailed`."""
        policy, retry_on = given
        if isinstance(error, Snooze):
            return error.after
        if isinstance(error, Discard) or attempt >= policy.max_attempts:
            return None
        if isinstance(error, Retry):
            if error.after is not None:
                return error.after
        elif isinstance(error, Outcome) or not is_retryable(error, retry_on):
            return None
        return delay_of_retry(policy, attempt, error, RANDOM)

    # Suspension

    def interrupt(self, error: BaseException) -> None:
        """End this activation with an error that says nothing of the call that raises it: the same
        call may return in the next activation."""
        if self.interruption is None:
            self.interruption = error

    def changed(self, seq: int, recorded: str, called: str) -> FlowChanged:
        """The code makes another call than the one that is recorded. Returns the error to raise."""
        error = FlowChanged(self.run_id, seq=seq, recorded=recorded, called=called)
        self.interrupt(error)
        return error

    def start(self) -> None:
        if self.interruption is not None:
            raise self.interruption
        if not self.ctx.holds_lease():
            # The process stood still: another worker may have done meanwhile what comes next.
            error = ClaimLost(self.ctx.id, self.ctx.token)
            self.interrupt(error)
            raise error
        self._active += 1

    def stop(self) -> None:
        self._active -= 1
        self.moves += 1
        if self._blocked and not self._active:
            self._watch()

    @property
    def waits(self) -> list[int]:
        """The calls that wait, of which none can go on."""
        return [seq for calls in self._blocked.values() for seq in calls]

    async def settle(self) -> None:
        """The function has ended: wait until the calls that it left behind have, too. They would
        run again beside themselves if the run went on without them."""
        if self.suspending or not (self._active or self._blocked):
            return
        rest: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._blocked[rest] = ()
        if not self._active:
            self._watch()
        with suppress(Suspended):
            await rest

    async def block(self, *calls: int) -> None:
        """Wait for something outside of this process: the run goes on in another activation."""
        if self.interruption is not None:
            raise self.interruption
        if self._active and self.unrecorded:
            # Other branches still run: the wait begins now, not when they are done.
            self.start()
            try:
                await self.write()
            finally:
                self.stop()
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._blocked[future] = calls
        if not self._active:
            self._watch()
        try:
            await future
        except asyncio.CancelledError:
            if not self.suspending:
                # A task group has cut the branch off: the run does not wait for this any more.
                del self._blocked[future]
            raise

    def _watch(self) -> None:
        """Have the run go on, or be suspended, once nothing of it begins or ends for a while."""
        if not self._is_watched:
            self._is_watched = True
            self._check(0, -1)

    def _check(self, turns: int, moves: int) -> None:
        has_turns = bool(self._ended_calls or self._open_calls)
        if not has_turns and (self._active or self.suspending or not self._blocked):
            self._is_watched = False
            return
        if self.moves != moves:
            turns, moves = _TURNS_OF_BRANCHES if self.main.branches else _TURNS, self.moves
        if turns:
            asyncio.get_running_loop().call_soon(self._check, turns - 1, moves)
            return
        if has_turns:
            self._next_turn()
            self._check(0, -1)
            return
        self.suspending = True
        self.interrupt(Suspended())
        for future in self._blocked:
            if not future.done():
                future.set_exception(Suspended())


def _failed_calls(error: BaseException | None, seen: set[int] | None = None) -> set[int | None]:
    """The calls whose error this is, or was caused by; of a group, each of its errors."""
    # An error that is raised from its own group contains itself.
    seen = set() if seen is None else seen
    while error is not None and id(error) not in seen:
        if isinstance(error, StepFailed | SignalTimeout):
            return {error.seq}
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup) and (
            found := {seq for one in error.exceptions for seq in _failed_calls(one, seen)}
        ):
            return found
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context
    return set()


def errors_in(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, as a task group raises it, and of the groups in it; else the error."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from errors_in(one)
    else:
        yield error


def find_decisive(errors: Sequence[BaseException]) -> BaseException | None:
    """Of errors that branches raised side by side, return the one that says how the run goes on,
    whatever the others are. A branch that waits comes before one that failed: the other may go on
    meanwhile."""
    for kind in (ClaimLost, TransientError, FlowChanged, Suspended):
        for group in errors:
            for error in errors_in(group):
                if isinstance(error, kind):
                    return error
    return None


def _is_stopped(record: StepRecord) -> bool:
    """Whether the job of a call was cancelled because the run had ended. The run never received
    that, and if it is retried, the job has to start again."""
    return record.state == FAILED and record.error_code == RUN_ENDED and record.job_id is not None


def _raises(record: StepRecord) -> bool:
    """Whether a call raises an error when it is replayed; or returns a default in its place."""
    return record.error_code is not None and record.state in _OVER


def is_over(record: StepRecord | None) -> bool:
    """Whether the call returns or raises when it is replayed."""
    if record is None:
        return False
    return record.state in _OVER or (record.kind == "sleep" and record.is_due)
