"""What every database can store, checked before one sees it: names, keys, text, times, JSON."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, TypeVar

import msgspec

from duetime.errors import InvalidInput

T = TypeVar("T")

FIRST_PRIORITY = 0
LAST_PRIORITY = 9
MAX_NAME_LENGTH = 200
OWN_TASKS = "duetime."
"""The tasks of Duetime itself begin so: reminders, digests, re-arming."""
RUN_KEYS = "tick:"
"""The keys of schedules' runs begin so."""
STEP_KEYS = "flow:"
"""The keys of jobs that do a step of a flow begin so."""
UNDO_KEYS = "flow-undo:"
"""The keys of jobs that run the compensations of a flow begin so."""

_LARGE = re.compile(rb"[0-9][eE]\+?[0-9]{3}|[0-9]{200}")
"""A number that may be too large for a float. Only `msgspec.Raw` can hold one that is."""
_SIGNS = re.compile(rb'null|NaN|Infinity|"nan"|"inf"|"-inf"|' + _LARGE.pattern)
"""What the codec writes for NaN and infinity, which JSON does not have; or a large number."""


def check_name(value: str, *, what: str) -> str:
    """Return `value` if it can name a queue, a task, a key or a partition."""
    if not isinstance(value, str):
        raise InvalidInput(f"The {what} must be a string, got {value!r}.")
    if not value or len(value) > MAX_NAME_LENGTH:
        raise InvalidInput(
            f"The {what} must have 1 to {MAX_NAME_LENGTH} characters, got {len(value)}."
        )
    check_text(value, what=f"The {what}")
    if value.isspace():
        raise InvalidInput(f"The {what} must have at least one visible character, got {value!r}.")
    return value


def check_actor(by: Any) -> str:
    """Return the name of who makes a change; raise `InvalidInput`."""
    return check_name(by, what="actor (by=)")


def check_task_not_reserved(name: str) -> None:
    """Raise `InvalidInput` if only Duetime itself may have a task of this name."""
    if isinstance(name, str) and name.startswith(OWN_TASKS):
        raise InvalidInput(
            f"The task name {name!r:.60} is reserved: names that begin with {OWN_TASKS!r} are used "
            "by Duetime. Choose another name."
        )


def check_key(value: str) -> str:
    """Return `value` if it can be the key of an application's job."""
    check_name(value, what="key")
    if value.startswith(RUN_KEYS):
        raise InvalidInput(
            f"The key {value!r:.60} is reserved: keys that begin with {RUN_KEYS!r} are used for "
            "the runs of schedules. Choose another key."
        )
    if value.startswith((STEP_KEYS, UNDO_KEYS)):
        raise InvalidInput(
            f"The key {value!r:.60} is reserved: keys that begin with {STEP_KEYS!r} or "
            f"{UNDO_KEYS!r} are used for the steps of flows. Choose another key."
        )
    return value


def check_queue(value: str) -> str:
    """Return `value` if it can name a queue, also in a list such as `--queues a,b`."""
    check_name(value, what="queue")
    if "," in value or value != value.strip():
        raise InvalidInput(
            f"{value!r:.60} is not a valid queue name: it must not contain commas, nor begin or "
            "end with a space."
        )
    return value


def check_sought(value: str, *, what: str) -> str:
    """Return `value` if something can be looked for by it: what is stored may be longer than a
    name, and blank."""
    if not isinstance(value, str):
        raise InvalidInput(f"The {what} must be a string, got {value!r:.60}.")
    if not value:
        raise InvalidInput(f"The {what} must not be empty. Leave it out, or give a value.")
    return check_text(value, what=f"The {what}")


def check_names(values: Iterable[str], *, what: str, example: str) -> tuple[str, ...]:
    """Return the names, each once, in their order. A text alone would be read letter by letter.

    >>> check_names(["ann", "bob", "ann"], what="recipients", example="recipients=['ann']")
    ('ann', 'bob')
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise InvalidInput(
            f"The {what} must be a list of names, such as {example}, got {values!r:.60}."
        )
    return tuple(dict.fromkeys(check_name(value, what=f"name in {what}") for value in values))


def check_many(values: Iterable[T], *, takes: str) -> list[T]:
    """Return the values as a list. `takes` begins a sentence: "put_many() takes subjects"."""
    if not isinstance(values, Iterable):
        raise InvalidInput(f"{takes} in a list or another iterable, got {values!r:.60}.")
    return list(values)


def check_arguments(args: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of a job, a run or a schedule, which are given by their names; raise
    `InvalidInput`.

    >>> check_arguments({"order": 7}), check_arguments(None)
    ({'order': 7}, {})
    """
    if args is None:
        return {}
    if not isinstance(args, Mapping) or not all(isinstance(name, str) for name in args):
        raise InvalidInput(
            "args must be a mapping of the names of arguments to their values, such as "
            f"{{'order': 7}}, got {args!r:.60}."
        )
    return dict(args)


def check_text(value: str, *, what: str) -> str:
    """Return `value` if every database can store it. `what` begins a sentence: "The reason"."""
    if not isinstance(value, str):
        raise InvalidInput(f"{what} must be a string, got {value!r:.60}.")
    if "\x00" in value:
        raise InvalidInput(f"{what} contains a NUL character, which cannot be stored. Remove it.")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{what} contains a lone surrogate, which is not valid text. Check how the input was "
            "decoded."
        ) from None
    return value


def check_json_text(raw: bytes, *, what: str) -> None:
    r"""Raise `InvalidInput` if a text in this JSON, however deep, contains a NUL. JSON escapes it,
    so `check_text` of the JSON would not find it.

    >>> check_json_text(b'{"path": "C:\\\\u0000"}', what="The data")
    >>> check_json_text(b'[{"\\u0000": 1}]', what="Data")
    Traceback (most recent call last):
    duetime.errors.InvalidInput: Data contains a NUL character, which cannot be stored. Remove it.
    """
    if b"\\u0000" not in raw:
        return
    left = [msgspec.json.decode(raw)]
    while left:
        match left.pop():
            case str() as text:
                check_text(text, what=what)
            case dict() as items:
                left += items
                left += items.values()
            case list() as items:
                left += items


def check_priority(value: int) -> int:
    """Return `value` if it is a priority: 0 (first) to 9 (last)."""
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or not FIRST_PRIORITY <= value <= LAST_PRIORITY
    ):
        raise InvalidInput(
            f"priority must be an integer from 0 (first) to 9 (last), got {value!r}."
        )
    return value


def check_job_id(value: int) -> int:
    """Return `value` if a job may have it as its id."""
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**63:
        raise InvalidInput(f"A job id must be a positive integer, got {value!r:.60}.")
    return value


def check_moment(value: datetime, *, name: str) -> datetime:
    """Return `value` if it is an aware datetime that every database can store."""
    if not isinstance(value, datetime):
        raise InvalidInput(f"{name} must be a datetime with a time zone, got {value!r}.")
    if value.tzinfo is None or value.utcoffset() is None:
        raise InvalidInput(
            f"{name} has no time zone: {value.isoformat()}. "
            "Give an aware datetime, such as datetime.now(timezone.utc)."
        )
    if not 1970 <= value.year <= 9000:
        raise InvalidInput(f"{name} must be between the years 1970 and 9000, got {value.year}.")
    return value


def check_finite(value: Any, raw: bytes, *, what: str) -> None:
    """Raise `InvalidInput` if a number in `value`, which was written as `raw`, is not finite, or
    cannot be read."""
    if _SIGNS.search(raw) is None:
        return
    try:
        number = find_unfinite(value)
    except RecursionError:
        raise InvalidInput(f"{what} is nested too deeply.") from None
    if number is not None:
        verb = "is" if isinstance(value, float | Decimal) else "holds"
        raise InvalidInput(
            f"{what} {verb} {number}, which JSON does not support. Use None or a finite number."
        )
    if _LARGE.search(raw) is None:
        return
    try:
        msgspec.json.decode(msgspec.json.encode(value))
    except msgspec.ValidationError:
        raise InvalidInput(
            f"{what} holds a number that is too large to be read. Pass it as a string."
        ) from None


def find_unfinite(value: Any) -> float | Decimal | None:
    """Return a number in it, however deep, that is not finite."""
    left = [msgspec.to_builtins(value, builtin_types=(Decimal, msgspec.Raw))]
    while left:
        match left.pop():
            case float() as number if not math.isfinite(number):
                return number
            case Decimal() as number if not number.is_finite():
                return number
            case dict() as items:
                left += items
                left += items.values()
            case list() | tuple() | set() | frozenset() as items:
                left += items
    return None
