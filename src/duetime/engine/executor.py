"""One attempt, from the claimed job to the record of how it ended."""

from __future__ import annotations

import asyncio
import logging
import traceback as tracebacks
from random import Random
from typing import Any

import msgspec

from duetime.domain.checks import check_finite
from duetime.domain.duration import parse_duration
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.jobs.outcome import (
    RESULT_NOT_STORED,
    Cancel,
    Completed,
    Discard,
    Outcome,
    Retry,
    Snooze,
)
from duetime.domain.jobs.task import TaskDefinition
from duetime.domain.reasons import Reason
from duetime.errors import (
    DuetimeError,
    InvalidArguments,
    InvalidInput,
    JobCancelled,
    TransientError,
)
from duetime.telemetry.events import handler_frames, log_event

log = logging.getLogger("duetime.worker")

MAX_RESULT_BYTES = 64 * 1024
_MAX_ERROR = 4_000
_MAX_TRACEBACK = 20_000
_MAX_CAUSES = 5
FAILED = (AttemptOutcome.RETRIED, AttemptOutcome.DEAD)
COMPLETED = AttemptOutcome.COMPLETED
"""For the hot path: before Python 3.12 a lookup in an enumeration costs 0.1 µs."""


class TimedOut(Exception):
    """The handler took longer than its time-out."""


def end_with(
    job: ClaimedJob,
    task: TaskDefinition,
    value: Any,
    *,
    started_us: int,
    finished_us: int,
    random: Random,
) -> FinishedJob:
    """Turn what a handler returned or raised into the record that the store sees."""
    try:
        return _end_with(FinishedJob(job, COMPLETED, started_us, finished_us), task, value, random)
    except BaseException as error:  # noqa: BLE001 - such as a `__class__` that raises
        end = FinishedJob(job, COMPLETED, started_us, finished_us)
        kind, why = type(value).__name__, type(error).__name__
        unreadable = f"an object of type {kind} that cannot be examined: {why}"
        if issubclass(type(value), BaseException):
            return _end_with(end, task, RuntimeError(f"the handler raised {unreadable}"), random)
        end.error_code, end.error = RESULT_NOT_STORED, f"the handler returned {unreadable}"
        return end


def ignore_outcome(job: ClaimedJob, value: Any) -> None:
    """The handler's own transaction had completed the job before it returned or raised this."""
    kind = type(value)
    if issubclass(kind, BaseException) and not issubclass(kind, Completed):
        _log_ignored(job, kind.__name__, _say(value))


def end_as_completed(end: FinishedJob) -> None:
    """The database refused this end: the handler's own transaction had completed the job."""
    if end.outcome is not COMPLETED:
        _log_ignored(end.job, end.error_code or end.outcome, end.message)
        end.outcome, end.again_after = COMPLETED, None
        end.error_code = end.error = end.facts = end.traceback = end.exception = None


def _log_ignored(job: ClaimedJob, outcome: str, error: str | None) -> None:
    log_event(
        log,
        logging.WARNING,
        "outcome_ignored",
        "Job %(job_id)s of task %(task)s ended with %(outcome)s, which has no effect: %(reason)s.",
        job_id=job.id,
        task=job.task,
        outcome=outcome,
        error=error,
        reason="the handler's own transaction had completed the job",
    )


def _end_with(end: FinishedJob, task: TaskDefinition, value: Any, random: Random) -> FinishedJob:
    match value:
        case None:
            return end
        case Completed():
            return _completed(end, task, value.result)
        case Snooze():
            end.outcome = AttemptOutcome.SNOOZED
            end.again_after = value.after
            _give_reason(end, value, code="snoozed")
        case Cancel():
            end.outcome = AttemptOutcome.CANCELLED
            _give_reason(end, value, code=value.code)
        case Discard():
            end.outcome = AttemptOutcome.DEAD
            _describe(end, value, code="discarded")
            _give_reason(end, value, code="discarded")
        case Retry():
            _describe(end, value, code="retry")
            _give_reason(end, value, code="retry")
            _again(end, task, value, random)
        case JobCancelled():
            end.outcome, end.error_code = AttemptOutcome.CANCELLED, "cancelled"
        case InvalidArguments():
            # No later attempt can read what this one could not.
            end.outcome = AttemptOutcome.DEAD
            _describe(end, value, code="invalid_arguments")
        case BaseException():
            _describe(end, value, code=_code_of(value))
            if _may_pass(value, task.options.retry_on):
                _again(end, task, value, random)
            else:
                end.outcome = AttemptOutcome.DEAD
        case _:
            return _completed(end, task, value)
    return end


def _completed(end: FinishedJob, task: TaskDefinition, result: Any) -> FinishedJob:
    if result is None or not task.options.keep_result:
        return end
    try:
        end.result = write_json(result, what="result")
    except InvalidInput as error:
        end.error_code = RESULT_NOT_STORED
        end.error = _clean(str(error), _MAX_ERROR)
    return end


def write_json(value: Any, *, what: str) -> str:
    """Return `value` as JSON that every database can store; raise `InvalidInput`."""
    try:
        raw = msgspec.json.encode(value)
        # What is given as `msgspec.Raw` may be anything.
        msgspec.json.decode(raw, type=msgspec.Raw)
        text = raw.decode()
        check_finite(value, raw, what=f"The {what}")
    except InvalidInput:
        raise
    except Exception as error:
        raise InvalidInput(f"The {what} cannot be written as JSON: {_say(error)}.") from error
    if len(raw) > MAX_RESULT_BYTES or b"\\u0000" in raw:
        raise InvalidInput(
            f"The {what} has {len(raw):,} bytes of JSON (at most {MAX_RESULT_BYTES:,}), or a NUL."
        )
    return text


def _again(end: FinishedJob, task: TaskDefinition, value: BaseException, random: Random) -> None:
    if end.job.attempt >= end.job.max_attempts:
        end.outcome = AttemptOutcome.DEAD
        return
    end.outcome = AttemptOutcome.RETRIED
    after = value.after if isinstance(value, Retry) else None
    if after is None:
        try:
            wait = task.options.retry.delay(end.job.attempt, value, random)
            after = parse_duration(wait, name="the retry's delay")
        except Exception as error:  # noqa: BLE001
            # A broken policy must neither lose the job nor spin on it.
            end.outcome = AttemptOutcome.DEAD
            failed = f"its retry policy failed: {type(error).__name__}: {_say(error)}"
            end.error = _clean(f"{end.message}; and {failed}", _MAX_ERROR)
            return
    end.again_after = after


def _may_pass(error: BaseException, retry_on: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, asyncio.CancelledError) and Exception in retry_on:
        # Python sets it apart from errors. Here it is one: nobody has asked for it.
        return True
    # That the database was away is no verdict on the job, whatever the task lists.
    return isinstance(error, (*retry_on, TimedOut, TransientError))


def _code_of(error: BaseException) -> str:
    if isinstance(error, TimedOut):
        return "timed_out"
    try:
        code = getattr(error, "code", None)
    except Exception:  # noqa: BLE001 - an error's own code may fail
        code = None
    # Some libraries have a method of that name.
    return str(code) if code and isinstance(code, str | int) else type(error).__name__


def _describe(end: FinishedJob, error: BaseException, *, code: str) -> None:
    end.exception = error
    end.error_code = _clean(code, 200)
    end.error = _clean(_say_with_causes(error, code), _MAX_ERROR)
    if error.__traceback__ is not None or error.__cause__ is not None:
        try:
            lines = tracebacks.format_exception(
                type(error), error, handler_frames(error.__traceback__)
            )
        except Exception:  # noqa: BLE001
            return
        end.traceback = _clean("".join(lines), _MAX_TRACEBACK)


def _say_with_causes(error: BaseException, code: str) -> str:
    """The error's message; with its class, unless the code tells that, and with its causes,
    unless the message repeats them, as SQLAlchemy's do."""
    text, name = _say(error), type(error).__name__
    if isinstance(error, TimedOut):
        return text
    if code != name and text != name and not isinstance(error, DuetimeError | Outcome):
        text = f"{name}: {text}"
    cause = error.__cause__
    for _ in range(_MAX_CAUSES):
        if cause is None:
            break
        said, name = _say(cause), type(cause).__name__
        if said.partition("\n")[0] not in text:
            text += f"; caused by {said if said == name else f'{name}: {said}'}"
        cause = cause.__cause__
    return text


def _give_reason(end: FinishedJob, outcome: Outcome, *, code: str) -> None:
    """The words of a handler are kept as they are; a reason of ours, by its code and facts."""
    given = outcome.args[0] if outcome.args else None
    if isinstance(given, Reason):
        end.error_code, end.error = given.code, None
        end.facts = msgspec.json.encode(given.facts).decode() if given.facts else None
    elif end.error is None:
        end.error_code, end.error = code, _clean(_say(outcome), _MAX_ERROR)


def _say(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except Exception:  # noqa: BLE001 - an error may fail to describe itself
        return f"{type(error).__name__} (it cannot be shown as text)"


def _clean(text: str, most: int) -> str:
    """Text that every database can store. A long one loses its middle: messages tell what
    happened at the beginning, tracebacks at the end."""
    text = text.replace("\x00", "\\0").encode(errors="backslashreplace").decode()
    if len(text) <= most:
        return text
    head = most // 4
    return f"{text[:head]} … {text[head - most :]}"
