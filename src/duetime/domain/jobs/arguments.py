"""Which jobs have certain arguments: a path into them and the value that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from duetime.domain.checks import check_finite, check_text
from duetime.errors import InvalidInput

Arguments = Mapping[str, Any] | str | Sequence[str]
"""`{"order.id": 7}`, `"order.id=7"`, or several such texts."""

MAX_CONDITIONS = 8
MAX_DEPTH = 8
_MAX_LENGTH = 1000
_LARGEST = 2**63 - 1


class ArgumentFilter(msgspec.Struct, frozen=True):
    """One value that the arguments of a job must have."""

    path: tuple[str, ...]
    """The names of nested objects, and the places in lists, from 0."""
    value: str | int | float | bool | None

    def __str__(self) -> str:
        return f"{'.'.join(self.path)}={msgspec.json.encode(self.value).decode()}"


def read_arguments(given: Arguments) -> tuple[ArgumentFilter, ...]:
    """Return the conditions that `args=` sets; raise `InvalidInput`.

    >>> [str(condition) for condition in read_arguments({"order.id": 7})]
    ['order.id=7']
    >>> [str(condition) for condition in read_arguments("lines.0.sku=A-17")]
    ['lines.0.sku="A-17"']
    """
    if isinstance(given, Mapping):
        pairs = list(given.items())
    elif isinstance(given, str):
        pairs = [_split(given)]
    elif isinstance(given, Sequence):
        pairs = [_split(text) for text in given]
    else:
        raise InvalidInput(
            f'args= must be a mapping such as {{"order.id": 7}} or a text such as "order.id=7", '
            f"got {given!r:.60}."
        )
    if len(pairs) > MAX_CONDITIONS:
        raise InvalidInput(f"args= must have at most {MAX_CONDITIONS} paths, got {len(pairs)}.")
    return tuple(ArgumentFilter(_path(path), _value(path, value)) for path, value in pairs)


def _split(text: Any) -> tuple[str, Any]:
    """`order.id=7`: what is not JSON is a string."""
    if not isinstance(text, str) or "=" not in text:
        raise InvalidInput(f'args= must be written as "order.id=7", got {text!r:.60}.')
    path, _, value = text.partition("=")
    try:
        return path, msgspec.json.decode(value)
    except (ValueError, RecursionError):
        return path, value


def _path(given: Any) -> tuple[str, ...]:
    if not isinstance(given, str) or not given or len(given) > _MAX_LENGTH:
        raise InvalidInput(
            f"The path of an argument must have 1 to {_MAX_LENGTH:,} characters, got {given!r:.60}."
        )
    check_text(given, what="The path of an argument")
    path = tuple(given.split("."))
    if not all(path) or len(path) > MAX_DEPTH:
        raise InvalidInput(
            f"The path of an argument is up to {MAX_DEPTH} names with dots between them, such as "
            f"order.id, got {given!r:.60}."
        )
    if any(char in given for char in '"\\') or not given.isprintable():
        raise InvalidInput(
            "The path of an argument must not contain quotes, backslashes or control characters, "
            f"got {given!r:.60}."
        )
    return path


def _value(path: str, value: Any) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if len(value) > _MAX_LENGTH:
            raise InvalidInput(f"The value of {path} must have at most {_MAX_LENGTH:,} characters.")
        return check_text(value, what=f"The value of {path}")
    if isinstance(value, int) and abs(value) <= _LARGEST:
        return value
    if isinstance(value, float):
        check_finite(value, msgspec.json.encode(value), what=f"The value of {path}")
        return value
    raise InvalidInput(
        f"The value of {path} must be a string, a number, a boolean or None, got {value!r:.60}."
    )
