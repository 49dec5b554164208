"""What each kind of call does: replay what is recorded, or do it and record it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from inspect import CORO_CREATED, getcoroutinestate
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec.structs import replace

from duetime.domain.flows.flow import StepKind, StepRecord, step_key
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.outcome import Discard, Snooze
from duetime.domain.jobs.task import TaskDefinition
from duetime.engine.executor import (
    RetryPolicyFailed,
    code_of_error,
    describe_exception,
    is_cancelled,
    write_json,
)
from duetime.errors import ClaimLost, InvalidInput, SignalTimeout, StepFailed, TransientError
from duetime.flows.calls import Step, StepFunction, result_of, retry_after
from duetime.flows.journal import COMPLETED, FAILED, RETRYING, WAITING
from duetime.flows.replay import Compensation, Replay
from duetime.flows.unwinding import Replayed, Suspended, find_decisive
from duetime.telemetry.events import log_event
from duetime.telemetry.traces import current_trace, trace_step

T = TypeVar("T")

log = logging.getLogger("duetime.flows")

NO_DEFAULT: Any = object()
_IN_PLACE = timedelta(seconds=1)
"""A retry that is due so soon is waited for; else the run is suspended."""
_TIMED_OUT = "timed_out"
_PASSED_ON = (ClaimLost, TransientError, Suspended, Replayed)
"""What does not say that a step has failed."""


async def call_step(
    replay: Replay,
    called: StepFunction,
    seq: int,
    record: StepRecord | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    attempt = 0
    await replay.in_turn(record)
    if record is not None:
        if record.state == COMPLETED:
            return _decode(called.decoder, record.output)
        if record.state == FAILED:
            raise _failure(replay, record)
        attempt = record.attempt
        if record.state == RETRYING and not record.is_due:
            await replay.block(seq)
    name = called.name
    replay.activity.start()
    try:
        await replay.journal.write_compensations()
        while True:
            attempt += 1
            started = replay.ctx.elapsed_us
            try:
                with trace_step(name, seq=seq, attempt=attempt):
                    step = _make_step(replay, seq, attempt)
                    value = await result_of(called.call(args, kwargs, step))
                output = _encode(name, value)
            except _PASSED_ON as error:
                replay.activity.interrupt(error)
                raise
            except BaseException as error:
                if is_cancelled(error):
                    raise
                wait, failure = _plan_retry(replay, called, attempt, error)
                attempt -= isinstance(error, Snooze)
                if wait is None:
                    await replay.record(
                        replay.journal.failed_record(seq, name, attempt, failure, started)
                    )
                    raise _failed_as(replay, name, seq, failure) from error
                if wait > _IN_PLACE:
                    failed = replay.journal.failed_record(
                        seq, name, attempt, error, started, wait=wait
                    )
                    replay.journal.add(failed)
                    break
                await asyncio.sleep(wait.total_seconds())
                replay.activity.check()
            else:
                await replay.record(
                    replay.journal.new_record(
                        seq, "step", name, COMPLETED, output, attempt, started
                    )
                )
                return _decode(called.decoder, output)
    finally:
        replay.activity.stop()
    return await replay.block(seq)


async def call_in_transaction(
    replay: Replay,
    called: StepFunction,
    name: str,
    seq: int,
    record: StepRecord | None,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Any:
    """As `call_step`, but nothing that failed has happened, and it is not retried in place."""
    await replay.in_turn(record)
    if record is not None and record.state == COMPLETED:
        return _decode(called.decoder, record.output)
    if record is not None and record.state == FAILED:
        raise _failure(replay, record)
    if record is not None and not record.is_due:
        await replay.block(seq)
    attempt = 1 if record is None else record.attempt + 1
    replay.activity.start()
    started = replay.ctx.elapsed_us
    done = replay.journal.new_record(seq, "transaction", name, COMPLETED, None, attempt, started)
    try:
        await replay.journal.write_compensations()
        async with replay.recorder.transaction(replay.ctx, done) as connection:
            with trace_step(name, seq=seq, attempt=attempt):
                step = _make_step(replay, seq, attempt)
                value = await result_of(called.call((connection, *args), kwargs, step))
            output = _encode(name, value)
            done.output = None if output is None else msgspec.Raw(output.encode())
            done.finished = replay.ctx.elapsed_us
        return _decode(called.decoder, output)
    except _PASSED_ON as error:
        replay.activity.interrupt(error)
        raise
    except BaseException as error:
        if replay.is_stopped_by(error):
            # It may have been committed all the same.
            written = (await replay.recorder.load(replay.run_id)).steps.get(seq)
            if written is not None and written.state == COMPLETED:
                replay.cancellation.postpone()
                return _decode(called.decoder, written.output)
        if is_cancelled(error):
            raise
        wait, failure = _plan_retry(replay, called, attempt, error)
        attempt -= isinstance(error, Snooze)
        failed = replay.journal.failed_record(seq, name, attempt, failure, started, wait=wait)
        failed.kind = "transaction"
        if wait is None:
            await replay.record(failed)
            raise _failed_as(replay, name, seq, failure) from error
        replay.journal.add(failed)
    finally:
        replay.activity.stop()
    return await replay.block(seq)


async def run_jobs(
    replay: Replay,
    calls: Sequence[tuple[int, StepRecord | None, NewJob]],
    task: Any,
    *,
    one: bool,
) -> Any:
    """Have jobs do steps, and wait for them."""
    await replay.in_turn(*(record for _, record, _ in calls))
    batch = None if one or not calls else calls[0][0]
    if fresh := [(seq, job) for seq, record, job in calls if record is None]:
        replay.activity.start()
        try:
            starts = []
            trace = current_trace()
            for seq, job in fresh:
                waiting = replay.journal.new_record(seq, kind_of_job(task), job.task, WAITING)
                waiting.batch = batch
                key = step_key(replay.run_id, seq)
                starts.append((waiting, replace(job, key=key, trace=trace)))
            if replay.journal.unwritten:
                await replay.journal.write()
            await replay.recorder.start_jobs(replay.ctx, starts)
        except Exception as error:
            replay.activity.interrupt(error)
            raise
        finally:
            replay.activity.stop()
    if waiting_for := [seq for seq, record, _ in calls if record is None or not record.is_over]:
        await replay.block(*waiting_for)
    records = [record for _, record, _ in calls if record is not None]
    # A retry makes all of them again, not just the one that is raised.
    if failures := [_failure(replay, record) for record in records if record.state == FAILED]:
        raise failures[0]
    results = [_decode_as(task.definition, record.output, replay.run_id) for record in records]
    return results[0] if one else results


async def call_for_each(
    replay: Replay,
    called: StepFunction,
    calls: Sequence[tuple[int, StepRecord | None, Any]],
    concurrency: int,
) -> list[Any]:
    results: list[Any] = [None] * len(calls)
    places = iter(range(len(calls)))
    failed = False

    async def work() -> None:
        nonlocal failed
        if (task := asyncio.current_task()) is not None:
            replay.turns.unordered_tasks.add(task)
        for place in places:
            seq, record, item = calls[place]
            try:
                results[place] = await call_step(replay, called, seq, record, (item,), {})
            except BaseException:
                failed = True
                raise
            if failed:
                return

    await gather([work() for _ in range(min(concurrency, len(calls)))])
    return results


async def sleep(replay: Replay, seq: int, record: StepRecord | None, wait: timedelta) -> None:
    await replay.in_turn(record)
    if record is not None and (record.state == COMPLETED or record.is_due):
        if record.state != COMPLETED:
            replay.journal.add(replay.journal.new_record(seq, "sleep", "sleep", COMPLETED))
        return
    if record is None:
        replay.journal.add(replay.journal.new_record(seq, "sleep", "sleep", WAITING, wait=wait))
    await replay.block(seq)


async def wait_for_signal(
    replay: Replay,
    seq: int,
    record: StepRecord | None,
    name: str,
    wait: timedelta | None,
    default: Any,
    correlation: str | None,
) -> Any:
    await replay.in_turn(record)
    if record is None or record.state == WAITING:
        signal = next((signal for signal in replay.signals if signal.name == name), None)
        if signal is not None:
            replay.signals.remove(signal)
            taken = replay.journal.new_record(seq, "signal", name, COMPLETED, signal.data)
            taken.signal = signal.id
            await replay.record_value(taken)
            return None if signal.data is None else msgspec.json.decode(signal.data)
        if record is None or not record.is_due:
            if record is None:
                waiting = replay.journal.new_record(seq, "signal", name, WAITING, wait=wait)
                waiting.correlation = correlation
                replay.journal.add(waiting)
            await replay.block(seq)
        late = replay.journal.new_record(seq, "signal", name, COMPLETED)
        late.code = _TIMED_OUT
        await replay.record_value(late)
    elif record.error_code != _TIMED_OUT:
        return _decode(None, record.output)
    if default is NO_DEFAULT:
        replay.call_failed(seq)
        raise SignalTimeout(name, seq=seq)
    return default


async def record_value(replay: Replay, kind: StepKind, make: Callable[[], T], type_: type[T]) -> T:
    seq, record = replay.call(kind, kind)
    await replay.in_turn(record)
    if record is not None:
        return msgspec.json.decode(record.output or "null", type=type_)
    output = msgspec.json.encode(make()).decode()
    await replay.record_value(replay.journal.new_record(seq, kind, kind, COMPLETED, output))
    return msgspec.json.decode(output, type=type_)


async def undo(replay: Replay, compensation: Compensation) -> timedelta | None:
    """Run a compensation, and record it. Returns how long to wait before it is tried again."""
    seq, called, args, kwargs = compensation
    record = replay.records.get(seq)
    if record is not None and record.state in (COMPLETED, FAILED):
        return None
    attempt = 1 if record is None or record.state != RETRYING else record.attempt + 1
    started, name, wait = replay.ctx.elapsed_us, called.name, None
    try:
        await result_of(called.call(args, kwargs, _make_step(replay, seq, attempt)))
        done = replay.journal.new_record(
            seq, "compensation", name, COMPLETED, None, attempt, started
        )
    except _PASSED_ON:
        raise
    except BaseException as error:
        if is_cancelled(error):
            raise
        wait, failure = _plan_retry(replay, called, attempt, error)
        attempt -= isinstance(error, Snooze)
        done = replay.journal.failed_record(seq, name, attempt, failure, started, wait=wait)
        done.kind = "compensation"
        if wait is None:
            log_event(
                log,
                logging.ERROR,
                "compensation_failed",
                "The compensation %(step)s of run %(run_id)s failed, and is not tried again: "
                "%(error)s",
                job_id=replay.ctx.id,
                run_id=replay.run_id,
                step=name,
                error=done.error,
                exc_info=error,
            )
    await replay.recorder.record(replay.ctx, [done])
    return wait


def kind_of_job(task: Any) -> StepKind:
    """How a call is recorded that has a job do a step."""
    return "child" if task.definition.options.flow else "job"


def new_job(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], **changes: Any) -> NewJob:
    job: NewJob = task.job(*args, **kwargs)
    return replace(job, **changes)


def _plan_retry(
    replay: Replay, called: StepFunction, attempt: int, error: BaseException
) -> tuple[timedelta | None, BaseException]:
    """How long to wait before the next attempt, or None if it is not tried again; and the error to
    record."""
    try:
        return retry_after(called.retry or replay.policy, attempt, error), error
    except RetryPolicyFailed as failed:
        return None, failed


def _make_step(replay: Replay, seq: int, attempt: int) -> Step:
    return Step(replay.run_id, seq, key=f"{replay.ctx.key}_{seq}", attempt=attempt)


class _Exit(NamedTuple):
    error: BaseException


async def gather(
    calls: Sequence[Awaitable[Any]], begin: Callable[[int], None] = lambda place: None
) -> Any:
    """Wait for calls side by side. `begin` is called in the task of each, with its place."""
    tasks = [_run_one(call, partial(begin, place)) for place, call in enumerate(calls)]
    try:
        results = await asyncio.gather(*tasks, return_exceptions=True)
    finally:
        for call in calls:
            # Its task was cancelled before it began: Python would warn that nobody awaited it.
            if asyncio.iscoroutine(call) and getcoroutinestate(call) == CORO_CREATED:
                call.close()
    results = [result.error if isinstance(result, _Exit) else result for result in results]
    errors = [result for result in results if isinstance(result, BaseException)]
    if errors:
        raise find_decisive(errors) or errors[0]
    return tuple(results)


async def _run_one(call: Awaitable[Any], begin: Callable[[], None]) -> Any:
    begin()
    try:
        return await call
    except (SystemExit, KeyboardInterrupt) as error:
        # A task raises these out of its event loop as well, which would end the worker.
        return _Exit(error)


def _encode(name: str, value: Any) -> str | None:
    """Return a step's output as JSON. What it did is done: another attempt would do it again."""
    try:
        return None if value is None else write_json(value, what=f"output of step {name!r}")
    except InvalidInput as error:
        raise Discard(str(error)) from None


def _decode(decoder: msgspec.json.Decoder[Any] | None, output: str | None) -> Any:
    if output is None:
        return None
    return msgspec.json.decode(output) if decoder is None else decoder.decode(output)


def _decode_as(definition: TaskDefinition, output: str | None, run_id: int) -> Any:
    plain = None if output is None else msgspec.json.decode(output)
    return definition.decode_result(plain, job_id=run_id)


def _failure(replay: Replay, record: StepRecord) -> StepFailed:
    replay.call_failed(record.seq)
    return StepFailed(record.name, seq=record.seq, error=record.error, error_code=record.error_code)


def _failed_as(replay: Replay, name: str, seq: int, error: BaseException) -> StepFailed:
    replay.call_failed(seq)
    return StepFailed(
        name, seq=seq, error=describe_exception(error), error_code=code_of_error(error)
    )
