"""The page of the HTTP API: every operation, made from the OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from shlex import quote
from typing import Any

import msgspec

from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, Pages

Document = Mapping[str, Any]
_JSON = "application/json"


class Field(msgspec.Struct, frozen=True):
    """A parameter of an operation, or a field of a body or an answer."""

    name: str
    kind: str
    required: bool
    about: str


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One operation as people read it."""

    id: str
    method: str
    path: str
    summary: str
    about: str
    scope: str
    parameters: list[Field]
    body: list[Field]
    answer: str
    fields: list[Field]
    problems: list[tuple[str, str]]
    curl: str


def pages(frame: Frame, openapi: Callable[[], Document]) -> Pages:
    pages = Pages(frame)

    @cache
    def nouns() -> dict[str, list[Operation]]:
        return read_nouns(openapi())

    @pages.page("/api/docs", "api_docs.html")
    async def show_api(ask: Ask) -> dict[str, Any]:
        return {"nouns": nouns(), "origin": str(ask.request.base_url).rstrip("/")}

    return pages


def read_nouns(document: Document) -> dict[str, list[Operation]]:
    """The operations of each noun, in the order of the document."""
    found: dict[str, list[Operation]] = {}
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            [noun] = operation["tags"]
            found.setdefault(noun, []).append(_read(document, method.upper(), path, operation))
    return found


def _read(document: Document, method: str, path: str, operation: Document) -> Operation:
    content = operation.get("requestBody", {}).get("content", {}).get(_JSON, {})
    answer: Document = next(
        (one for status, one in operation["responses"].items() if status.startswith("2")), {}
    )
    contents: list[Document] = list(answer.get("content", {}).values())
    schema = contents[0]["schema"] if contents else None
    about = operation.get("description", "").partition("\n")[2].strip()
    return Operation(
        id=operation["operationId"],
        method=method,
        path=path,
        summary=operation["summary"],
        about=" ".join(about.split()),
        scope=operation["x-scope"],
        parameters=[
            Field(
                one["name"],
                f"{_kind(one.get('schema', {}))}, in the {one['in']}",
                bool(one.get("required")),
                one.get("description", ""),
            )
            for one in operation.get("parameters", ())
        ],
        body=list(_fields(document, content.get("schema"))),
        answer="no content" if schema is None else _kind(schema),
        fields=list(_fields(document, schema)),
        problems=[
            (status, one["description"])
            for status, one in operation["responses"].items()
            if not status.startswith("2")
        ],
        curl=_curl(method, path, content.get("example")),
    )


def _fields(document: Document, schema: Document | None) -> Iterator[Field]:
    """The fields of an object; of a page or a list, those of its items."""
    found = _resolve(document, schema or {})
    if "items" in found:
        found = _resolve(document, found["items"])
    elif (items := found.get("properties", {}).get("items", {}).get("items")) is not None:
        found = _resolve(document, items)
    for name, field in found.get("properties", {}).items():
        about = _about(field)
        yield Field(name, _kind(field), name in found.get("required", ()), about)


def _about(schema: Document) -> str:
    found = [schema.get("description", ""), *map(_about, schema.get("anyOf", ()))]
    return next(filter(None, found), "")


def _resolve(document: Document, schema: Document) -> Document:
    if "$ref" not in schema:
        return schema
    resolved: Document = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return resolved


def _kind(schema: Document) -> str:
    """A schema in a few words.

    >>> _kind({"anyOf": [{"type": "array", "items": {"type": "string"}}, {"type": "null"}]})
    'list of string, or null'
    """
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "anyOf" in schema:
        return ", or ".join(dict.fromkeys(_kind(one) for one in schema["anyOf"]))
    if "enum" in schema:
        return " | ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {_kind(schema.get('items', {}))}"
    return str(schema.get("format") or schema.get("type") or "any")


def _curl(method: str, path: str, example: Any) -> str:
    words = ["curl"] if method == "GET" else ["curl", "-X", method]
    words += ["-H", '"Authorization: Bearer $TOKEN"', f'"$DUETIME{path}"']
    if example is not None:
        words += ["-d", quote(json.dumps(example, ensure_ascii=False))]
    return " ".join(words)
