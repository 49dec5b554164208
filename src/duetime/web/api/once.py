"""Requests with an `Idempotency-Key`: carried out once, however often they are sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import Request, Response

from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor

KEY_HEADER = "idempotency-key"
REPEATED_HEADER = "idempotency-replayed"
_KEPT_HEADERS = ("content-type", "location")

KEY_PARAMETER: dict[str, Any] = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "description": "A new UUID for each new request. A request that is sent again with the same "
    "key is not carried out again, but gets the first answer.",
    "schema": {"type": "string", "pattern": "^[!-~]{1,255}$"},
}


async def run_once(
    app: Duetime,
    request: Request,
    visitor: Visitor,
    respond: Callable[[], Awaitable[Response]],
    *,
    secret: bool,
) -> Response:
    """Respond to a request; with a key that was used before, repeat the first answer."""
    key = request.headers.get(KEY_HEADER)
    if key is None:
        return await respond()
    async with app._idempotency.begin(
        visitor=visitor.name,
        method=request.method,
        path=request.url.path,
        query=request.url.query,
        key=key,
        body=await request.body(),
    ) as keyed:
        if keyed.answer is not None:
            headers = keyed.answer.headers | {REPEATED_HEADER: "true"}
            return Response(keyed.answer.body, status_code=keyed.answer.status, headers=headers)
        response = await respond()
        kept = {name: response.headers[name] for name in _KEPT_HEADERS if name in response.headers}
        body = getattr(response, "body", None)
        await keyed.finish(
            response.status_code,
            bytes(body or b""),
            headers=kept,
            # What is streamed is not at hand.
            secret=secret or body is None,
        )
        return response
