"""A flow as the handler of its task: load, replay, go on; then end, or suspend."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

from duetime.domain.flows.flow import LoadedRun, Suspension, read_undo_key
from duetime.domain.jobs.outcome import Snooze
from duetime.engine.context import Context
from duetime.engine.executor import is_cancelled
from duetime.errors import (
    ClaimLost,
    FlowChanged,
    FlowTimeout,
    SignalTimeout,
    StepFailed,
    TransientError,
)
from duetime.flows.calls import Policy, result_of
from duetime.flows.flow import Flow
from duetime.flows.recorder import Pause, Recorder
from duetime.flows.replay import Replay
from duetime.flows.steps import undo
from duetime.flows.unwinding import Suspended, errors_in, find_decisive

if TYPE_CHECKING:
    from duetime.app import Duetime


class FlowDefinition(NamedTuple):
    """A flow's function and its options, as a worker needs them."""

    function: Callable[..., Any]
    flow_name: str
    """The parameter that takes the `Flow`."""
    policy: Policy
    timeout: timedelta | None

    async def call(self, replay: Replay, args: dict[str, Any]) -> Any:
        if replay.is_early and not replay.turns.only_replays:
            raise Suspended
        value, error = None, None
        try:
            value = await result_of(self.function(**{self.flow_name: Flow(replay)}, **args))
        except BaseException as raised:
            if is_cancelled(raised):
                raise
            error = find_decisive([raised]) or raised
        if replay.activity.interruption is not None:
            # Whatever the function has made of it.
            error = replay.activity.interruption
        await replay.activity.settle()
        if error is not None:
            raise error
        return value


def flow_handler(app: Duetime, definition: FlowDefinition) -> Callable[..., Any]:
    """Return the handler of a flow's task: what a worker calls for a run of it."""

    async def handler(**kwargs: Any) -> Any:
        ctx: Context = kwargs.pop(definition.flow_name)
        undone = read_undo_key(ctx.job.key)
        if undone is not None:
            return await undo_run(app._flow_recorder, definition, ctx, kwargs, undone)
        with app._flow_recorder.running():
            return await advance_run(app._flow_recorder, definition, ctx, kwargs)

    return handler


async def advance_run(
    recorder: Recorder, definition: FlowDefinition, ctx: Context, args: dict[str, Any]
) -> Any:
    """Go on with a run until it ends or waits."""
    is_new = ctx.job.is_unrecorded
    loaded = LoadedRun({}, []) if is_new else None
    deadline = None
    if definition.timeout is not None:
        # It counts from the first start, or from the first after a retry.
        is_first = is_new and ctx.job.attempt == 1
        began_at = None if is_first else await recorder.began_at(ctx.id)
        this_start = ctx.job.claimed_at + timedelta(microseconds=ctx.started_us)
        deadline = (began_at or this_start) + definition.timeout
    while True:
        loaded = loaded or await recorder.load(ctx.id)
        replay = Replay(ctx, recorder=recorder, loaded=loaded, policy=definition.policy)
        try:
            has_ended, value = await _activate(definition, replay, args, deadline)
        except asyncio.CancelledError as error:
            if is_cancelled(error) and ctx.cancel_requested:
                await replay.record_compensations()
            raise
        if has_ended or ctx.suspended:
            return value
        if ctx.cancel_requested:
            # The function has suppressed its cancellation, which is not raised again.
            await replay.record_compensations()
            ctx.check()
        loaded = None


async def _activate(
    definition: FlowDefinition, replay: Replay, args: dict[str, Any], deadline: datetime | None
) -> tuple[bool, Any]:
    """Call the function once. Returns whether it returned, and what; else the run is suspended, or
    what it waits for is there already."""
    ctx, recorder = replay.ctx, replay.recorder
    try:
        value = await _call_in_time(definition, replay, args, deadline)
        if ctx.cancel_requested:
            # A cancellation that came while the last call was recorded is raised now.
            await asyncio.sleep(0)
        if records := replay.finish():
            await recorder.record(ctx, records)
        return True, value
    except Suspended:
        pass
    except (ClaimLost, TransientError):
        raise
    except FlowChanged as error:
        # No later attempt can help; the run keeps its place until the code is mended.
        await recorder.record(ctx, replay.fail(error))
        raise
    except BaseException as error:
        if is_cancelled(error):
            raise
        is_final = any(
            isinstance(one, StepFailed | SignalTimeout | FlowTimeout) for one in errors_in(error)
        )
        failure = error if is_final else replay.retry_later(error)
        if failure is not None:
            await recorder.record(ctx, replay.fail(failure))
            # Also for `Retry`: the attempts of its job are those after a crash.
            ctx.job.max_attempts = ctx.job.attempt
            if failure is error:
                raise
            raise failure from error
    pause = Pause(
        replay.journal.take(),
        Suspension(
            run=ctx.id,
            token=ctx.token,
            started=ctx.started_us,
            finished=ctx.elapsed_us,
            waits=replay.activity.waits,
            deadline=deadline,
        ),
    )
    answer = await recorder.suspend(pause)
    if answer == "lost":
        raise ClaimLost(ctx.id, ctx.token)
    ctx.suspended = answer == "suspended"
    return False, None


async def _call_in_time(
    definition: FlowDefinition, replay: Replay, args: dict[str, Any], deadline: datetime | None
) -> Any:
    """Call the function; raise `FlowTimeout` if the run has taken too long, or does meanwhile."""
    ctx, timeout = replay.ctx, definition.timeout
    if timeout is None or deadline is None:
        return await definition.call(replay, args)
    now = ctx.job.claimed_at + timedelta(microseconds=ctx.elapsed_us)
    left = (deadline - now).total_seconds()
    late = FlowTimeout(ctx.id, timeout.total_seconds())
    if left <= 0:
        # Its last compensation may not be stored. The function registers it again; if that hangs,
        # it has the time of a whole run.
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                await _only_replay(definition, replay, args)
        raise late
    try:
        async with asyncio.timeout(left) as limit:
            replay.cancellation.limit = limit
            value = await definition.call(replay, args)
            if limit.expired():
                # A cancellation that came while the last call was recorded is raised now.
                await asyncio.sleep(0)
            return value
    except TimeoutError:
        if not limit.expired():
            raise
        raise late from None


async def undo_run(
    recorder: Recorder,
    definition: FlowDefinition,
    ctx: Context,
    args: dict[str, Any],
    run_id: int,
) -> Snooze | None:
    """Replay a run that has failed, and run its compensations, the last first."""
    if not await recorder.has_ended(run_id):
        return None  # It was rerun meanwhile: what it did is not to be undone any more.
    loaded = await recorder.load(run_id)
    replay = Replay(ctx, recorder=recorder, loaded=loaded, policy=definition.policy, run_id=run_id)
    await _only_replay(definition, replay, args)
    known = {compensation.seq for compensation in replay.compensations}
    for record in loaded.steps.values():
        if record.seq < 0 and record.seq not in known:
            recorded = f"compensation {record.name!r}"
            raise FlowChanged(run_id, seq=record.seq, recorded=recorded, called=None)
    # The last that was registered has the lowest number.
    for compensation in sorted(replay.compensations, key=lambda one: one.seq):
        wait = await undo(replay, compensation)
        if wait is not None:
            return Snooze(wait)
    return None


async def _only_replay(definition: FlowDefinition, replay: Replay, args: dict[str, Any]) -> None:
    """Call the function for the compensations that it registers, up to the first call that is not
    recorded."""
    replay.turns.replay_only()
    try:
        await definition.call(replay, args)
    except FlowChanged:
        raise
    except BaseException as error:
        # Whatever it raises, it raised before.
        if is_cancelled(error):
            raise
