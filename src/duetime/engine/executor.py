"""How an attempt finished: what its handler returned or raised becomes a `FinishedJob`."""

from __future__ import annotations

import asyncio
import logging
import traceback as tracebacks
from datetime import timedelta
from random import Random
from typing import Any

import msgspec

from duetime.domain.checks import check_finite, check_json_text
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
from duetime.domain.jobs.retry import RetryPolicy
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
_MAX_CODE = 200
_MAX_ERROR = 4_000
_MAX_TRACEBACK = 20_000
_MAX_CAUSES = 5
FAILED = (AttemptOutcome.RETRIED, AttemptOutcome.DEAD)
COMPLETED = AttemptOutcome.COMPLETED
"""For the hot path: before Python 3.12 a lookup in an enumeration costs 0.1 µs."""


_any_json = msgspec.json.Decoder(msgspec.Raw)


class TimedOut(Exception):
    """The handler took longer than its timeout."""


class RetryPolicyFailed(Exception):
    """An attempt failed, and so did the policy that says when to try again."""

    def __init__(self, error: BaseException, failure: BaseException) -> None:
        self.code = code_of_error(error)
        self.failure = f"its retry policy failed: {type(failure).__name__}: {message_of(failure)}"
        super().__init__(f"{describe_exception(error)}; and {self.failure}")


def make_finished_job(
    job: ClaimedJob,
    task: TaskDefinition,
    value: Any,
    *,
    started_us: int,
    finished_us: int,
    random: Random,
) -> FinishedJob:
    """Return the record that the store sees, from what a handler returned or raised."""
    try:
        return _apply(FinishedJob(job, COMPLETED, started_us, finished_us), task, value, random)
    except BaseException as error:  # noqa: BLE001 - such as a `__class__` that raises
        finished = FinishedJob(job, COMPLETED, started_us, finished_us)
        kind, why = type(value).__name__, type(error).__name__
        unreadable = f"an object of type {kind} that cannot be examined: {why}"
        if issubclass(type(value), BaseException):
            return _apply(finished, task, RuntimeError(f"the handler raised {unreadable}"), random)
        finished.error_code = RESULT_NOT_STORED
        finished.error = f"the handler returned {unreadable}"
        return finished


def warn_of_ignored_outcome(job: ClaimedJob, value: Any) -> None:
    """The handler raised this after its own transaction had completed the job."""
    kind = type(value)
    if issubclass(kind, BaseException) and not issubclass(kind, Completed):
        _log_ignored(job, kind.__name__, message_of(value))


def mark_completed(finished: FinishedJob) -> None:
    """Correct a record that was refused: the handler's own transaction had completed the job."""
    if finished.outcome is not COMPLETED:
        _log_ignored(finished.job, finished.error_code or finished.outcome, finished.message)
        finished.outcome, finished.again_after = COMPLETED, None
        finished.error_code = finished.error = finished.facts = None
        finished.traceback = finished.exception = None


def _log_ignored(job: ClaimedJob, outcome: str, error: str | None) -> None:
    log_event(
        log,
        logging.WARNING,
        "outcome_ignored",
        "The outcome %(outcome)s of job %(job_id)s (%(task)s) has no effect: %(reason)s.",
        job_id=job.id,
        task=job.task,
        outcome=outcome,
        error=error,
        reason="the handler's own transaction had completed the job",
    )


def _apply(finished: FinishedJob, task: TaskDefinition, value: Any, random: Random) -> FinishedJob:
    match value:
        case None:
            return finished
        case Completed():
            return _store_result(finished, task, value.result)
        case Snooze():
            finished.outcome = AttemptOutcome.SNOOZED
            finished.again_after = value.after
            _give_reason(finished, value, code="snoozed")
        case Cancel():
            finished.outcome = AttemptOutcome.CANCELLED
            _give_reason(finished, value, code=value.code)
        case Discard():
            finished.outcome = AttemptOutcome.DEAD
            _describe_error(finished, value, code="discarded")
            _give_reason(finished, value, code="discarded")
        case Retry():
            _describe_error(finished, value, code="retry")
            _give_reason(finished, value, code="retry")
            _retry(finished, task, value, random)
        case JobCancelled():
            finished.outcome, finished.error_code = AttemptOutcome.CANCELLED, "cancelled"
        case InvalidArguments():
            # No later attempt can read what this one could not.
            finished.outcome = AttemptOutcome.DEAD
            _describe_error(finished, value, code="invalid_arguments")
        case BaseException():
            _describe_error(finished, value, code=code_of_error(value))
            if is_retryable(value, task.options.retry_on):
                _retry(finished, task, value, random)
            else:
                finished.outcome = AttemptOutcome.DEAD
        case _:
            return _store_result(finished, task, value)
    return finished


def _store_result(finished: FinishedJob, task: TaskDefinition, result: Any) -> FinishedJob:
    if result is None or not task.options.keep_result:
        return finished
    try:
        finished.result = write_json(result, what="result")
    except InvalidInput as error:
        finished.error_code = RESULT_NOT_STORED
        finished.error = _storable(str(error), _MAX_ERROR)
    return finished


def write_json(value: Any, *, what: str, most: int = MAX_RESULT_BYTES) -> str:
    """Return `value` as JSON that every database can store; raise `InvalidInput`."""
    try:
        raw = msgspec.json.encode(value)
        # What is given as `msgspec.Raw` may be anything.
        _any_json.decode(raw)
        text = raw.decode()
        check_finite(value, raw, what=f"The {what}")
    except InvalidInput:
        raise
    except Exception as error:
        message = f"The {what} cannot be written as JSON: {message_of(error)}."
        raise InvalidInput(message) from error
    if len(raw) > most:
        raise InvalidInput(
            f"The {what} has {len(raw):,} bytes of JSON, and the limit is {most:,}. "
            "Store the data elsewhere and use a reference."
        )
    check_json_text(raw, what=f"The {what}")
    return text


def _retry(
    finished: FinishedJob, task: TaskDefinition, value: BaseException, random: Random
) -> None:
    if finished.job.attempt >= finished.job.max_attempts:
        finished.outcome = AttemptOutcome.DEAD
        return
    finished.outcome = AttemptOutcome.RETRIED
    after = value.after if isinstance(value, Retry) else None
    if after is None:
        try:
            after = delay_of_retry(task.options.retry, finished.job.attempt, value, random)
        except RetryPolicyFailed as error:
            # A broken retry policy must neither lose the job nor retry it without a delay.
            finished.outcome = AttemptOutcome.DEAD
            finished.error = _storable(f"{finished.message}; and {error.failure}", _MAX_ERROR)
            return
    finished.again_after = after


def delay_of_retry(
    policy: RetryPolicy, attempt: int, error: BaseException, random: Random
) -> timedelta:
    """How long to wait after a failed attempt; raise `RetryPolicyFailed`."""
    try:
        return parse_duration(policy.delay(attempt, error, random), name="the retry's delay")
    except BaseException as failure:  # noqa: BLE001 - a policy may raise anything
        raise RetryPolicyFailed(error, failure) from error


def is_cancelled(error: BaseException) -> bool:
    """Whether the current task was cancelled, or was closed with its event loop. A `CancelledError`
    without that is an error like any other: what the handler awaited was cancelled, or it raised
    the error itself."""
    if isinstance(error, GeneratorExit):
        # Nothing may be awaited any more.
        return True
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and bool(task and task.cancelling())


def is_retryable(error: BaseException, retry_on: tuple[type[BaseException], ...]) -> bool:
    if isinstance(error, asyncio.CancelledError) and Exception in retry_on:
        # Not an `Exception` in Python. Here it is an error: nobody requested the cancellation.
        return True
    # An outage of the database says nothing about the job, whatever the task lists.
    return isinstance(error, (*retry_on, TimedOut, TransientError))


def code_of_error(error: BaseException) -> str:
    """A short code for an error, as it is stored: its own, or its class."""
    if isinstance(error, TimedOut):
        return "timed_out"
    text = ""
    try:
        code = getattr(error, "code", None)
        # Some libraries have a method of this name.
        if code and isinstance(code, str | int):
            text = str(code)
    except BaseException:  # noqa: BLE001 - such as a number of too many digits
        pass
    return _storable(text or type(error).__name__, _MAX_CODE)


def describe_exception(error: BaseException) -> str:
    """The message of an error with its causes, as it is stored."""
    return _storable(_message_with_causes(error, code_of_error(error)), _MAX_ERROR)


def _describe_error(finished: FinishedJob, error: BaseException, *, code: str) -> None:
    finished.exception = error
    finished.error_code = code
    finished.error = _storable(_message_with_causes(error, code), _MAX_ERROR)
    if error.__traceback__ is not None or error.__cause__ is not None:
        try:
            lines = tracebacks.format_exception(
                type(error), error, handler_frames(error.__traceback__)
            )
        except BaseException:  # noqa: BLE001 - the same
            return
        finished.traceback = _storable("".join(lines), _MAX_TRACEBACK)


def _message_with_causes(error: BaseException, code: str) -> str:
    """The error's message. With its class, unless the code is the class, and with its causes,
    unless the message contains them, as SQLAlchemy's do."""
    text, name = message_of(error), type(error).__name__
    if isinstance(error, TimedOut | RetryPolicyFailed):
        return text
    if code != name and text != name and not isinstance(error, DuetimeError | Outcome):
        text = f"{name}: {text}"
    cause = error.__cause__
    for _ in range(_MAX_CAUSES):
        if cause is None:
            break
        message, name = message_of(cause), type(cause).__name__
        if message.partition("\n")[0] not in text:
            text += f"; caused by {message if message == name else f'{name}: {message}'}"
        cause = cause.__cause__
    return text


def _give_reason(finished: FinishedJob, outcome: Outcome, *, code: str) -> None:
    """A reason in a handler's own words is stored as it is; one of ours by its code and facts."""
    given = outcome.args[0] if outcome.args else None
    if isinstance(given, Reason):
        finished.error_code, finished.error = given.code, None
        finished.facts = msgspec.json.encode(given.facts).decode() if given.facts else None
    elif finished.error is None:
        finished.error_code, finished.error = code, _storable(message_of(outcome), _MAX_ERROR)


def message_of(error: BaseException) -> str:
    try:
        return str(error) or type(error).__name__
    except BaseException:  # noqa: BLE001 - an error may fail to describe itself
        return f"{type(error).__name__} (it cannot be shown as text)"


def _storable(text: str, max_length: int) -> str:
    """Return text that every database can store. A long text loses its middle: messages begin with
    what happened, tracebacks end with it."""
    text = text.replace("\x00", "\\0").encode(errors="backslashreplace").decode()
    if len(text) <= max_length:
        return text
    head = max_length // 4
    return f"{text[:head]} … {text[head - max_length :]}"
