"""Errors as problem details (RFC 9457): every error of ours has a code, and says what to do."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from duetime import errors
from duetime.domain.urls import hide_passwords
from duetime.telemetry.events import exception_info, log_event

log = logging.getLogger("duetime.web")

PROBLEM_TYPE = "application/problem+json"


class Problem(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What went wrong with a request, and what to do."""

    status: int
    code: str
    title: str
    detail: str
    type: str = "about:blank"
    facts: dict[str, Any] = {}
    """The identifiers in the error, such as `job_id`."""


class Refused(Exception):
    """A request that is answered with a problem: no login, too little scope, a bad key."""

    def __init__(
        self, status: int, code: str, detail: str, *, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.problem = Problem(status=status, code=code, title=_title(code), detail=detail)
        self.headers = headers


_STATUS: dict[type[errors.DuetimeError], int] = {
    errors.InvalidInput: 422,
    errors.UnknownTask: 422,
    errors.UnknownFlow: 422,
    errors.DataRejected: 422,
    errors.JobNotFound: 404,
    errors.FlowNotFound: 404,
    errors.QueueNotFound: 404,
    errors.ScheduleNotFound: 404,
    errors.PresetNotFound: 404,
    errors.ScopeNotFound: 404,
    errors.TableNotFound: 404,
    errors.SubjectNotFound: 404,
    errors.ReminderNotFound: 404,
    errors.DeliveryNotFound: 404,
    errors.RecipientNotFound: 404,
    errors.TokenNotFound: 404,
    errors.AccountNotFound: 404,
    errors.RequestInProgress: 409,
    errors.AnswerNotKept: 409,
    errors.IdempotencyKeyReused: 422,
    errors.KeyConflict: 409,
    errors.NameTaken: 409,
    errors.LastAdmin: 409,
    errors.IllegalTransition: 409,
    errors.FlowEnded: 409,
    errors.OlderRelease: 409,
    errors.JobFailed: 409,
    errors.InvalidResult: 409,
    errors.ResultTimeout: 409,
    errors.JobCancelled: 409,
    errors.SettingsError: 422,
    errors.LoginFailed: 401,
    errors.TooManyLogins: 429,
    errors.TransientError: 503,
    errors.SchemaMismatch: 503,
}


def status_of(error: errors.DuetimeError) -> int:
    """The status of an error: its own, or that of the nearest class above it."""
    return next((_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS), 500)


def problem_of(error: errors.DuetimeError) -> Problem:
    """Return an error as a problem. A fault of ours reveals no more than that."""
    status = status_of(error)
    if status == 500:
        return UNEXPECTED
    detail = hide_passwords(str(error))
    if isinstance(error, errors.StorageError) and not isinstance(error, errors.DataRejected):
        # What the driver says names hosts and users.
        detail = "The database cannot be used at the moment. Try again later."
        return Problem(status=status, code=error.code, title=_title(error.code), detail=detail)
    return Problem(
        status=status,
        code=error.code,
        title=_title(error.code),
        detail=detail,
        facts={name: value for name, value in vars(error).items() if isinstance(value, str | int)},
    )


UNEXPECTED = Problem(
    status=500,
    code="internal_error",
    title="Internal error",
    detail="The service failed to answer. Its log says why.",
)


_DETAILS = {
    404: "There is nothing at this address.",
    405: "This address does not accept the method. /api/openapi.json lists those that it does.",
}


def write(problem: Problem, *, headers: dict[str, str] | None = None) -> Response:
    """A problem as JSON."""
    return Response(
        msgspec.json.encode(problem),
        status_code=problem.status,
        media_type=PROBLEM_TYPE,
        headers=headers,
    )


Show = Callable[[Request, Problem], Response | None]
"""Shows a problem to a person; None: it is a program that asks."""


def add_handlers(service: FastAPI, show: Show = lambda request, problem: None) -> None:
    """Answer every error with a problem; where a person asks, as `show` shows it."""

    def answer(
        request: Request, problem: Problem, *, headers: dict[str, str] | None = None
    ) -> Response:
        return show(request, problem) or write(problem, headers=headers)

    @service.exception_handler(errors.DuetimeError)
    async def known(request: Request, error: errors.DuetimeError) -> Response:
        if status_of(error) >= 500:
            _log_failure(error)
        wait = getattr(error, "retry_in", None)
        headers = None if wait is None else {"retry-after": str(wait)}
        return answer(request, problem_of(error), headers=headers)

    @service.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> Response:
        return answer(request, error.problem, headers=error.headers)

    @service.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(
            request,
            Problem(
                status=422,
                code="invalid_input",
                title="Invalid input",
                detail=" ".join(_sentence(one) for one in error.errors()),
            ),
        )

    @service.exception_handler(HTTPException)
    async def plain(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "error")
        headers = dict(error.headers) if error.headers else None
        problem = Problem(
            status=error.status_code,
            code=code,
            title=_title(code),
            detail=_DETAILS.get(error.status_code, str(error.detail)),
        )
        return answer(request, problem, headers=headers)

    @service.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        _log_failure(error)
        return answer(request, UNEXPECTED)


def _log_failure(error: Exception) -> None:
    log_event(
        log,
        logging.ERROR,
        "request_failed",
        "A request to the service failed: %(error_code)s: %(error)s",
        error_code=getattr(error, "code", type(error).__name__),
        error=hide_passwords(str(error)),
        exc_info=exception_info(error),
    )


def _sentence(error: dict[str, Any]) -> str:
    where = ".".join(str(part) for part in error["loc"][1:]) or error["loc"][0]
    return f"{where}: {error['msg']}."


def _title(code: str) -> str:
    return code.replace("_", " ").capitalize()
