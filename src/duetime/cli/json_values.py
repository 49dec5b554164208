"""JSON that is given on the command line."""

from __future__ import annotations

import json
from typing import Any

import click


def read_json(text: str) -> Any:
    """Return the value of a JSON text; raise `ValueError` with what is wrong."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


class ObjectType(click.ParamType):  # type: ignore[type-arg]
    """A JSON object."""

    name = "json"

    def convert(self, value: Any, param: Any, ctx: Any) -> Any:
        return read_object(self, value, param, ctx) if isinstance(value, str) else value


def read_object(kind: Any, text: str, param: Any, ctx: Any) -> dict[str, Any]:
    """Return the JSON object that an option of this type is given."""
    try:
        value = read_json(text)
    except ValueError as error:
        kind.fail(f"{text[:60]!r} is not JSON: {error}.", param, ctx)
    if not isinstance(value, dict):
        kind.fail(f"{text[:60]!r} is not a JSON object such as '{{\"id\": 7}}'.", param, ctx)
    return dict(value)
