"""Routes of the API: each states its scope, what it takes and what it answers.

Bodies and answers are msgspec types: they are checked and encoded by msgspec, and their JSON
schemas are the OpenAPI document's.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from functools import cache, partial
from typing import Annotated, Any, get_args

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.openapi.utils import get_openapi

from duetime import __version__
from duetime.app import Duetime
from duetime.domain.access.token import TokenScope
from duetime.domain.access.visitor import Visitor
from duetime.domain.page import Page
from duetime.errors import InvalidInput
from duetime.web.access import Access
from duetime.web.api.once import KEY_PARAMETER, run_once
from duetime.web.problems import PROBLEM_TYPE, Problem
from duetime.web.security import names_in, read_names

Handler = Callable[..., Awaitable[Any]]

_REF = "#/components/schemas/{name}"
JSON = "application/json"
_USUAL_PROBLEMS = {
    400: "The request cannot be read, or the service does not answer to this Host name",
    401: "Not authenticated: send an API token",
    403: "Not allowed: the token's scope is too small, or the service is read-only",
    413: "The body is too large",
    422: "The input is not valid",
    503: "The database cannot be used at the moment",
}
_ALSO = {404: "Not found", 409: "Not possible in this state", 504: "Not finished in time"}


class Routes:
    """The routes of one noun.

    A handler takes path and query parameters as FastAPI does, `visitor` if it wants to know who
    asks, and `body` if the route has one. It returns a value of the type `answer`; a `Page` is
    answered as `{"items": […], "next": cursor}`.
    """

    def __init__(self, app: Duetime, access: Access, *, noun: str, prefix: str = "/api/v1") -> None:
        self.app = app
        self._access = access
        self.router = APIRouter(prefix=prefix, tags=[noun])
        self.aliases = APIRouter()
        self.types: list[Any] = [Problem]

    def get(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("GET", path, **options)

    def post(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("POST", path, **options)

    def put(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("PUT", path, **options)

    def patch(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("PATCH", path, **options)

    def delete(self, path: str, **options: Any) -> Callable[[Handler], Handler]:
        return self._route("DELETE", path, **options)

    def _route(
        self,
        method: str,
        path: str,
        *,
        answer: Any = None,
        body: Any = None,
        example: Any = None,
        scope: TokenScope | None = None,
        status: int = 200,
        media_type: str = JSON,
        problems: Sequence[int] = (),
        secret: bool = False,
        alias: str | None = None,
    ) -> Callable[[Handler], Handler]:
        """`answer`: the type of what the handler returns; None: it answers 204 without a body.

        `example`: of the body. `media_type`: of an answer that the handler encodes itself.
        `secret`: the answer is not kept for a repeated request.
        `alias`: another path, which the OpenAPI document leaves out.
        """
        needed = scope or (TokenScope.READ if method == "GET" else TokenScope.OPERATE)
        status = 204 if answer is None else status
        once = None
        if method == "POST":
            once = partial(run_once, self.app, secret=secret)
            problems = (*problems, 409)

        def add(handler: Handler) -> Handler:
            self.types += [one for one in (answer, body) if one is not None]
            check = self._access.require(needed)
            endpoint = _encoded(handler, path, body, check, status, once, self.app.redacted)
            self.router.add_api_route(
                path,
                endpoint,
                methods=[method],
                status_code=status,
                response_model=None,
                operation_id=handler.__name__,
                summary=_summary(handler),
                description=inspect.getdoc(handler),
                responses=_responses(answer, status, media_type, problems),
                openapi_extra=_request_body(body, example)
                | ({} if once is None else {"parameters": [KEY_PARAMETER]})
                | {"x-scope": str(needed)},
            )
            if alias is not None:
                self.aliases.add_api_route(
                    alias,
                    endpoint,
                    methods=[method],
                    response_model=None,
                    include_in_schema=False,
                    openapi_extra={"x-scope": str(needed)},
                )
            return handler

        return add


def include(service: FastAPI, parts: Sequence[Routes]) -> None:
    """Add the routes to the service, and their types to its OpenAPI document."""
    for part in parts:
        add_routes(service, part.router)
        add_routes(service, part.aliases)
    types = [kind for part in parts for kind in part.types]
    document: dict[str, Any] = {}

    def openapi() -> dict[str, Any]:
        if not document:
            document.update(_openapi(service, types))
        return document

    service.openapi = openapi  # type: ignore[method-assign]


def add_routes(service: FastAPI, router: APIRouter) -> None:
    """Add the routes of a router as they are, so that the service lists each of its own."""
    service.router.routes.extend(router.routes)


@cache
def page_of(kind: Any) -> Any:
    """The type of a page of a list, as it is answered."""
    return msgspec.defstruct(
        f"{kind.__name__}Page",
        [("items", list[kind]), ("next", str | None), ("examined", int | None, None)],
        namespace={
            "__doc__": "One page of a list. `next` is the `after` of the page behind it; null on "
            "the last one. `examined`: the search stopped after so many, and goes on from `next`."
        },
    )


def encode(value: Any) -> bytes:
    if isinstance(value, Page):
        page: dict[str, Any] = {"items": list(value), "next": value.next}
        if value.examined is not None:
            page["examined"] = value.examined
        return msgspec.json.encode(page)
    return msgspec.json.encode(value)


def _encoded(
    handler: Handler,
    path: str,
    body: Any,
    check: Callable[[Request], Awaitable[Visitor]],
    status: int,
    once: Callable[..., Awaitable[Response]] | None,
    redact: Callable[[Any], Any],
) -> Handler:
    """Return the handler as FastAPI wants it: it checks who asks, and answers bytes.

    `once`: carries out a request that has an idempotency key. `redact`: applied to every answer.
    """
    signature = inspect.signature(handler, eval_str=True)
    wanted = list(signature.parameters.values())
    takes_visitor = "visitor" in signature.parameters
    visitor = inspect.Parameter(
        "visitor",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=Annotated[Visitor, Depends(check)],
    )
    request = inspect.Parameter("request", inspect.Parameter.KEYWORD_ONLY, annotation=Request)
    # Who asks is checked before the body is read.
    parameters = [visitor, request]
    for parameter in wanted:
        if parameter.name == "body":
            annotation: Any = Annotated[body, Depends(_reader(body))]
            parameter = parameter.replace(annotation=annotation)
        if parameter.name != "visitor":
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    names = set(_query_names(wanted))
    in_path = names_in(path)

    async def call(*, request: Request, **values: Any) -> Response:
        _check_query(request, names)
        read_names(values, in_path)
        visitor = values["visitor"] if takes_visitor else values.pop("visitor")

        async def respond() -> Response:
            result = await handler(**values)
            if isinstance(result, Response):
                return result
            if status == 204:
                return Response(status_code=204)
            return Response(encode(redact(result)), status_code=status, media_type=JSON)

        if once is None:
            return await respond()
        return await once(request, visitor, respond)

    call.__name__ = handler.__name__
    call.__doc__ = handler.__doc__
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return call


def _query_names(parameters: Sequence[inspect.Parameter]) -> Iterator[str]:
    """The parameters that a request may name, with those of dependencies."""
    for parameter in parameters:
        if parameter.name in ("visitor", "body"):
            continue
        found = [one for one in get_args(parameter.annotation)[1:] if hasattr(one, "dependency")]
        if found:
            yield from inspect.signature(found[0].dependency).parameters
        else:
            yield parameter.name


def _check_query(request: Request, names: Collection[str]) -> None:
    """Refuse a misspelt filter, which would otherwise select everything."""
    for name in request.query_params:
        if name not in names:
            raise InvalidInput(f"There is no query parameter {name!r:.60} here.")


def _reader(kind: Any) -> Callable[[Request], Awaitable[Any]]:
    decoder = msgspec.json.Decoder(kind)
    nothing = b"{}" if _is_optional(kind) else b""

    async def read(request: Request) -> Any:
        try:
            return decoder.decode(await request.body() or nothing)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidInput(f"The body is not valid: {error}.") from None
        except RecursionError:
            raise InvalidInput("The body is nested too deeply.") from None

    return read


def _is_optional(body: Any) -> bool:
    """Whether a request without a body says the same as one with an empty object."""
    return (
        isinstance(body, type)
        and issubclass(body, msgspec.Struct)
        and not any(field.required for field in msgspec.structs.fields(body))
    )


def _summary(handler: Handler) -> str:
    return (inspect.getdoc(handler) or handler.__name__).partition("\n")[0].rstrip(".")


def _request_body(body: Any, example: Any) -> dict[str, Any]:
    if body is None:
        return {}
    content: dict[str, Any] = {"schema": _schema(body)}
    if example is not None:
        content["example"] = example
    return {"requestBody": {"required": not _is_optional(body), "content": {JSON: content}}}


def _responses(
    answer: Any, status: int, media_type: str, problems: Sequence[int]
) -> dict[int | str, Any]:
    responses: dict[int | str, Any] = {}
    if answer is not None:
        responses[status] = {
            "description": "Done",
            "content": {media_type: {"schema": _schema(answer)}},
        }
    usual = {**_USUAL_PROBLEMS, **{one: _ALSO[one] for one in problems}}
    for code, description in sorted(usual.items()):
        responses[code] = {
            "description": description,
            "content": {PROBLEM_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
        }
    return responses


def _schema(kind: Any) -> Any:
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=_REF)
    return schema


def _openapi(service: FastAPI, types: Sequence[Any]) -> dict[str, Any]:
    document = get_openapi(
        title="Duetime",
        version=__version__,
        summary="Durable reminders, schedules, jobs and flows.",
        routes=[route for route in service.routes if getattr(route, "include_in_schema", False)],
    )
    _, components = msgspec.json.schema_components(types, ref_template=_REF)
    document.setdefault("components", {})["schemas"] = components
    document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    _describe_durations(document)
    return document


def _describe_durations(part: Any) -> None:
    """JSON Schema's format `duration` has no fractions of seconds; our answers do."""
    if isinstance(part, dict):
        if part.get("format") == "duration":
            del part["format"]
            part |= {"pattern": "^-?P", "description": "ISO 8601, such as `PT90S`."}
        part = part.values()
    if not isinstance(part, str | int | float | None):
        for one in part:
            _describe_durations(one)
