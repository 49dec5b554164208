"""What a service answers to a job of a webhook task: JSON that states the outcome."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from duetime.domain.jobs.outcome import Cancel, Completed, Discard, Outcome, Retry, Snooze
from duetime.errors import InvalidInput


class _Answer(msgspec.Struct, kw_only=True):
    outcome: Literal["completed", "retry", "snooze", "cancel", "dead"]
    result: Any = None
    after: str | float | None = None
    reason: str | None = None


def read_outcome(body: bytes) -> Outcome:
    """Return the outcome that an answer states; raise `InvalidInput` if it cannot be understood.

    An answer that states none, such as an empty one, completes the job.

    >>> read_outcome(b'{"outcome": "retry", "after": "5m", "reason": "the bank is closed"}').after
    datetime.timedelta(seconds=300)
    >>> read_outcome(b"OK")
    Completed(None)
    """
    try:
        content = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return Completed()
    if not isinstance(content, dict) or "outcome" not in content:
        return Completed()
    try:
        answer = msgspec.convert(content, _Answer)
    except msgspec.ValidationError as error:
        raise InvalidInput(
            f"{error}. The outcome must be completed, retry, snooze, cancel or dead; after is a "
            "duration, and reason is text."
        ) from None
    return _make_outcome(answer)


def _make_outcome(answer: _Answer) -> Outcome:
    match answer.outcome:
        case "completed":
            return Completed(answer.result)
        case "retry":
            return Retry(answer.reason, after=answer.after)
        case "snooze":
            if answer.after is None:
                raise InvalidInput('"snooze" requires "after", such as "5m".')
            return Snooze(answer.after, answer.reason)
        case "cancel":
            return Cancel(answer.reason)
        case "dead":
            return Discard(answer.reason)
