"""The fields of a form that a page sent."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl

import msgspec
from fastapi import Request
from starlette.datastructures import ImmutableMultiDict

from duetime.errors import InvalidInput

FORM_TYPE = "application/x-www-form-urlencoded"
_MAX_FIELDS = 2000

Form = ImmutableMultiDict[str, str]


async def read_form(request: Request) -> Form:
    """Return the fields; empty, if the body is not a form."""
    if not request.headers.get("content-type", "").startswith(FORM_TYPE):
        return ImmutableMultiDict()
    try:
        body = (await request.body()).decode("ascii")
        pairs = parse_qsl(body, keep_blank_values=True, max_num_fields=_MAX_FIELDS, errors="strict")
    except ValueError:
        raise InvalidInput("The form could not be read.") from None
    return ImmutableMultiDict(pairs)


def read_json(text: str, kind: Any = Any, *, what: str) -> Any:
    """Return the value of a field that holds JSON. `what`: the beginning of the error."""
    try:
        return msgspec.json.decode(text, type=kind)
    except msgspec.MsgspecError as error:
        raise InvalidInput(f"{what}: {error}.") from None
    except RecursionError:
        raise InvalidInput(f"{what}: it is nested too deeply.") from None
