"""Requests to the HTTP API: encoded, repeated if they fail, and their answers decoded."""

from __future__ import annotations

import asyncio
import re
import time
import uuid
from collections.abc import Hashable, Mapping
from datetime import datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any, TypeVar, cast
from urllib.parse import quote
from weakref import WeakKeyDictionary

import msgspec

from duetime import errors
from duetime.api.portal import keep_inherited
from duetime.domain.checks import check_finite
from duetime.domain.duration import (
    Duration,
    format_duration,
    format_time,
    parse_duration,
    parse_positive_duration,
)
from duetime.domain.page import Page
from duetime.errors import (
    DuetimeError,
    InvalidInput,
    RequestInProgress,
    ResultTimeout,
    ServiceError,
    ServiceUnreachable,
)

try:
    import httpx2
except ImportError as error:
    raise ImportError(
        "The client requires an extra package: pip install 'duetime[client]'."
    ) from error

T = TypeVar("T")

API = "/api/v1"
_PAUSES = (0.2, 0.6, 1.8)
"""The seconds before each repetition. It is safe: a POST carries an idempotency key."""
_WAIT_SECONDS = 30.0
"""How long one request waits for a result."""
_PASSING = frozenset({502, 503})
_ERRORS = {
    kind.code: kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, DuetimeError)
}


class _Problem(msgspec.Struct):
    """A problem document (RFC 9457), as the service answers it."""

    detail: str
    code: str = "error"
    facts: dict[str, Any] = {}


class _Result(msgspec.Struct):
    result: Any


class Connection:
    """Calls routes of one service. It has an HTTP client per event loop."""

    def __init__(self, url: str, token: str, *, timeout: Duration, **options: Any) -> None:
        try:
            self._url = httpx2.URL(url)
        except (httpx2.InvalidURL, TypeError):
            raise InvalidInput("The URL of the service cannot be parsed.") from None
        if self._url.scheme not in ("http", "https") or not self._url.host or self._url.userinfo:
            raise InvalidInput(
                "The URL of the service must begin with https:// or http://, contain a host, and "
                "no password: the token is its own argument."
            )
        if not token or not token.isascii() or not token.isprintable():
            raise InvalidInput("The token must be an API token: `duetime tokens create` makes one.")
        self._token = token
        self._timeout = parse_positive_duration(timeout, name="timeout").total_seconds()
        self._options = options
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, httpx2.AsyncClient] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"<connection to {self._url.host}>"

    async def call(
        self,
        route: str,
        answer: type[T] = NoneType,  # type: ignore[assignment]
        *,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        **path: Any,
    ) -> T:
        """Call a route, such as `"GET /jobs/{job_id}"`, and return its answer as that type.

        What is None in the query is left out.
        """
        content = await self._send(route, body=body, query=query, timeout=timeout, path=path)
        try:
            decoded: T = _decoder(cast("Hashable", answer)).decode(content or b"null")
            return decoded
        except msgspec.MsgspecError as error:
            raise ServiceError(
                f"The answer to {route} is not as expected: {error}. The client and the service "
                "may be of different versions.",
                status=200,
                code="unexpected_answer",
            ) from None

    async def page(
        self, route: str, kind: type[T], *, query: Mapping[str, Any], **path: Any
    ) -> Page[T]:
        """Call a route that answers a page of a list."""
        found = await self.call(route, _page_of(cast("Hashable", kind)), query=query, **path)
        return Page(found.items, next=found.next, examined=found.examined)

    async def result(self, route: str, run: int, /, *, timeout: Duration, **path: Any) -> Any:
        """Call a route that waits for the result of a job or a run, again until it is there."""
        seconds = parse_duration(timeout, name="timeout").total_seconds()
        deadline = time.monotonic() + seconds
        while True:
            wait = min(max(deadline - time.monotonic(), 0.0), _WAIT_SECONDS)
            query = {"timeout": timedelta(seconds=wait)}
            try:
                return (await self.call(route, _Result, query=query, timeout=wait, **path)).result
            except ResultTimeout:
                if time.monotonic() >= deadline:
                    raise ResultTimeout(run, seconds) from None

    async def content(self, route: str, *, query: Mapping[str, Any]) -> bytes:
        """Call a route whose answer is a file."""
        return await self._send(route, body=None, query=query, timeout=None, path={})

    async def close(self) -> None:
        """Close this event loop's connections; the next call opens new ones."""
        client = self._clients.pop(asyncio.get_running_loop(), None)
        if client is not None:
            await client.aclose()

    def forget(self) -> None:
        """In a forked process: use nothing that belongs to the parent."""
        for client in self._clients.values():
            keep_inherited(client)
        self._clients = WeakKeyDictionary()

    async def _send(
        self,
        route: str,
        *,
        body: Mapping[str, Any] | None,
        query: Mapping[str, Any] | None,
        timeout: float | None,
        path: Mapping[str, Any],
    ) -> bytes:
        method, _, template = route.partition(" ")
        headers = {"accept": "application/json"}
        content = None
        if body is not None:
            headers["content-type"] = "application/json"
            content = _encode(body)
        if method == "POST":
            headers["idempotency-key"] = str(uuid.uuid4())
        request = self._open().build_request(
            method,
            API.lstrip("/") + _fill(template, path),
            params=_query(query or {}),
            headers=headers,
            content=content,
            timeout=self._timeout if timeout is None else timeout + self._timeout,
        )
        for pause in (*_PAUSES, None):
            try:
                response = await self._open().send(request)
            except httpx2.TransportError as error:
                if pause is None:
                    raise ServiceUnreachable(self._url.host, type(error).__name__) from None
            else:
                if response.is_success:
                    return bytes(response.content)
                failure = _error_of(response)
                may_pass = response.status_code in _PASSING or isinstance(
                    failure, RequestInProgress
                )
                if pause is None or not may_pass:
                    raise failure
            await asyncio.sleep(pause)
        raise AssertionError

    def _open(self) -> httpx2.AsyncClient:
        loop = asyncio.get_running_loop()
        client = self._clients.get(loop)
        if client is None:
            client = self._clients[loop] = httpx2.AsyncClient(
                base_url=self._url,
                headers={"authorization": f"Bearer {self._token}", "user-agent": "duetime"},
                **self._options,
            )
        return client


def _error_of(response: httpx2.Response) -> DuetimeError:
    """The error that a problem document describes, of the same class as in the Python API."""
    status = response.status_code
    try:
        problem = msgspec.json.decode(response.content, type=_Problem)
    except msgspec.MsgspecError:
        text = f"The service answered {status}, and no problem document. Is its URL right?"
        return ServiceError(text, status=status, code="unexpected_answer")
    kind = _ERRORS.get(problem.code)
    if kind is None or kind is DuetimeError:
        return ServiceError(problem.detail, status=status, code=problem.code)
    # Each class has arguments of its own; what they become is in the facts.
    error = kind.__new__(kind, problem.detail)
    Exception.__init__(error, problem.detail)
    vars(error).update(problem.facts)
    return error


def _fill(template: str, path: Mapping[str, Any]) -> str:
    """Fill in the parameters of a path. A slash in a name is encoded."""
    for name, value in path.items():
        if str(value) in ("", ".", ".."):
            raise InvalidInput(
                f"{str(value)!r} cannot be used as {name} in the address of a request."
            )
    return re.sub(r"\{(\w+)\}", lambda found: quote(str(path[found[1]]), safe=""), template)


def _query(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in values.items():
        given = value if isinstance(value, list | tuple | set | frozenset) else [value]
        pairs += [(name, _text(one)) for one in given if one is not None]
    return pairs


def _text(value: Any) -> str:
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise InvalidInput("The datetime has no time zone. Add one, for example tzinfo=UTC.")
        return format_time(value)
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, str):
        return str(value)
    return msgspec.json.encode(value).decode().strip('"')


def _encode(body: Mapping[str, Any]) -> bytes:
    try:
        raw = msgspec.json.encode(body)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"The arguments cannot be encoded as JSON: {error}.") from None
    for name, value in body.items():
        check_finite(value, raw, what=name)
    return raw


@cache
def _decoder(kind: Hashable) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(cast("type[Any]", kind))


@cache
def _page_of(kind: Hashable) -> Any:
    return msgspec.defstruct(
        "PageAnswer",
        [
            ("items", list[kind]),  # type: ignore[valid-type]
            ("next", str | None, None),
            ("examined", int | None, None),
        ],
    )
