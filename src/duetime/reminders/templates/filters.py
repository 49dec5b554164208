"""The filters and tests of templates, and the count of what a rendering costs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from datetime import date, datetime, timedelta
from functools import wraps
from typing import Any
from urllib.parse import quote

import jinja2
from jinja2 import filters, tests

from duetime.reminders.templates.limits import MAX_TEXT_LENGTH, TemplateError
from duetime.reminders.templates.moments import DEFAULT_PATTERN, in_words, local, until_in_words

MAX_STEPS = 10_000
MAX_RANGE_LENGTH = 1_000

_STEP_SIZE = 256
_STEP_ITEMS = 16
_FORMAT = re.compile(r"%[-+ 0]?\d{0,2}(\.\d{1,2})?[dfs]|%%")


class Rendering:
    """What one rendering has spent, and what its times are relative to."""

    def __init__(self, now: datetime | None, tz: str) -> None:
        self.now = now
        self.tz = tz
        self.steps = 0


rendering: ContextVar[Rendering] = ContextVar("rendering")


def spend(value: Any = None) -> None:
    """Count a step; what it made counts by its size."""
    size = len(value) if isinstance(value, str | list | tuple) else 0
    check_size(size)
    _count(1 + size // (_STEP_SIZE if isinstance(value, str) else _STEP_ITEMS))


def weigh(value: Any) -> None:
    """Count what it takes to go through the value: to compare it, to sort it."""
    within = [value]
    items = 0
    while within:
        one = within.pop()
        items += 1
        if isinstance(one, str):
            items += len(one) * _STEP_ITEMS // _STEP_SIZE
        elif isinstance(one, dict):
            within += one.values()
        elif isinstance(one, list | tuple):
            within += one
        if items >= _STEP_ITEMS:
            _count(items // _STEP_ITEMS)
            items %= _STEP_ITEMS


def _count(steps: int) -> None:
    current = rendering.get()
    current.steps += steps
    if current.steps > MAX_STEPS:
        raise TemplateError("The template takes too many steps. Loop over fewer items.")


def check_size(size: int) -> None:
    if size > MAX_TEXT_LENGTH:
        raise TemplateError(f"A value is longer than {MAX_TEXT_LENGTH:,} characters.")


def need(value: Any) -> None:
    """Raise Jinja2's own error, which names it, if the value is missing."""
    if isinstance(value, jinja2.Undefined):
        str(value)


def write(value: Any) -> str:
    """How a value is written. Other values are refused: a reader should not see `['a']`."""
    need(value)
    match value:
        case str():
            text = str(value)
        case None:
            text = ""
        case bool():
            text = "yes" if value else "no"
        case int() | float():
            text = str(value)
        case datetime():
            text = local(value, rendering.get().tz, f"{DEFAULT_PATTERN} %Z")
        case date():
            text = value.isoformat()
        case timedelta():
            text = in_words(value)
        case _:
            raise TemplateError(
                f"{kind_of(value)} cannot be converted to text. Select an item of it, or use the "
                "join filter."
            )
    spend(text)
    return text


def each(values: Any) -> Iterator[Any]:
    """Its items, counted; `for` loops go through it."""
    need(values)
    if not isinstance(values, list | tuple | dict | range | Iterator):
        raise TemplateError(f"{kind_of(values)} cannot be looped over.")
    for value in values:
        spend()
        yield value


def limited_range(*bounds: int) -> range:
    """Python's, with a limit."""
    numbers = range(*bounds)
    if len(numbers) > MAX_RANGE_LENGTH:
        raise TemplateError(f"A range must have at most {MAX_RANGE_LENGTH:,} numbers.")
    return numbers


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def kind_of(value: Any) -> str:
    """What to call the value in a message."""
    kinds = {str: "a text", int: "a number", float: "a number", list: "a list", dict: "an object"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def _join(values: Any, separator: str = "") -> str:
    texts = [write(item) for item in each(values)]
    check_size(sum(map(len, texts)) + len(separator) * len(texts))
    return separator.join(texts)


def _replace(value: Any, old: str, new: str) -> str:
    text = write(value)
    check_size(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _round(value: float, digits: int = 0) -> float:
    if not 0 <= digits <= 10:
        raise TemplateError("round takes between 0 and 10 digits.")
    return round(value, digits or None)


def _format(pattern: str, *values: Any) -> str:
    if "%" in _FORMAT.sub("", pattern):
        raise TemplateError(f"{pattern[:80]!r} is not a valid format. Use %s, %d or %.2f.")
    return pattern % tuple(value if is_number(value) else write(value) for value in values)


def _truncate(value: Any, length: int = 255) -> str:
    text = write(value)
    if len(text) <= length:
        return text
    return text[: max(length - 1, 0)].rsplit(" ", 1)[0].rstrip() + "…"


def _local(moment: Any, zone: str | None = None, pattern: str = DEFAULT_PATTERN) -> str:
    return local(_moment(moment), zone or rendering.get().tz, pattern)


def _in_words(value: Any) -> str:
    if isinstance(value, timedelta):
        return in_words(value)
    now = rendering.get().now
    if now is None:
        raise TemplateError("The current time is not available while a template is compiled.")
    return until_in_words(_moment(value), now)


def _moment(value: Any) -> datetime:
    """A time, also one that JSON holds as text."""
    need(value)
    if isinstance(value, str):
        value = datetime.fromisoformat(value)
    if not isinstance(value, datetime) or value.tzinfo is None:
        raise TemplateError(f"{kind_of(value)} is not a time with a time zone.")
    return value


def _counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    # `wraps` also keeps the mark by which Jinja2 passes its environment.
    @wraps(function)
    def counted(*args: Any, **kwargs: Any) -> Any:
        if name not in _QUICK:
            args = tuple(list(each(arg)) if isinstance(arg, Iterator) else arg for arg in args)
            for value in (*args, *kwargs.values()):
                weigh(value)
        result = function(*args, **kwargs)
        spend(result)
        return result

    return counted


def _weighed(value: Any) -> Any:
    """A value that is about to be compared."""
    weigh(value)
    return value


# What does not go through its values, or counts by itself what it goes through.
_QUICK = frozenset(
    (
        "count", "d", "default", "each", "first", "last", "length", "value", "weighed",
        "boolean", "defined", "false", "mapping", "none", "number", "sequence", "string", "true",
        "undefined",
    )
)  # fmt: skip


_OURS: dict[str, Callable[..., Any]] = {
    "capitalize": lambda value: write(value).capitalize(),
    "each": each,
    "format": _format,
    "in_words": _in_words,
    "join": _join,
    "local": _local,
    "lower": lambda value: write(value).lower(),
    "replace": _replace,
    "round": _round,
    "string": write,
    "title": lambda value: filters.do_title(write(value)),
    "trim": lambda value: write(value).strip(),
    "truncate": _truncate,
    "upper": lambda value: write(value).upper(),
    "urlencode": lambda value: quote(write(value), safe=""),
    "value": lambda value: value,
    "weighed": _weighed,
}
# Of Jinja2's own those that make nothing larger.
_THEIRS = (
    "abs", "count", "d", "default", "first", "float", "int", "items", "last", "length", "list",
    "map", "max", "min", "reject", "rejectattr", "reverse", "select", "selectattr", "sort",
    "unique",
)  # fmt: skip
_TESTS = (
    "boolean", "defined", "divisibleby", "even", "false", "in", "mapping", "none", "number", "odd",
    "sequence", "string", "true", "undefined", "==", "!=", "<", "<=", ">", ">=",
    "eq", "ne", "lt", "le", "gt", "ge", "equalto", "greaterthan", "lessthan",
)  # fmt: skip

_LIBRARY: dict[str, Any] = {name: filters.FILTERS[name] for name in _THEIRS}
_CHECKS: dict[str, Any] = {name: tests.TESTS[name] for name in _TESTS}

FILTERS = {name: _counted(name, function) for name, function in (_LIBRARY | _OURS).items()}
TESTS = {name: _counted(name, function) for name, function in _CHECKS.items()}
