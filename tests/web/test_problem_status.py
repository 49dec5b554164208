"""Which errors are whose fault: each has the status that says so."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from starlette.testclient import TestClient

from duetime import errors
from duetime.web.problems import add_handlers, status_of

# What only code inside of this process can meet, or what is a fault of the service.
_INSIDE = {
    "ClaimLost", "DatabaseCorrupted", "DuetimeError", "EndlessWork", "FlowChanged", "FlowTimeout",
    "InvalidDatabaseURL", "InvalidResult", "ServiceError", "ServiceUnreachable", "SignalTimeout",
    "StartupFailed", "StepFailed",
    "StorageError", "UnsupportedTransaction",
}  # fmt: skip


def test_every_error_that_a_request_can_cause_has_a_status() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = [kind for kind in kinds if issubclass(kind, errors.DuetimeError)]
    unknown = {kind.__name__ for kind in ours if status_of(kind.__new__(kind)) == 500}

    assert len(ours) > 40
    assert unknown - _INSIDE == set()


@pytest.mark.parametrize(
    ("error", "status", "after"),
    [
        (errors.TooManyLogins(61.2), 429, "62"),
        (errors.RequestInProgress(0.2), 409, "1"),
        (errors.LoginFailed(), 401, None),
        (errors.IdempotencyKeyReused(), 422, None),
    ],
)
def test_the_answer_says_when_to_try_again(
    error: errors.DuetimeError, status: int, after: str | None
) -> None:
    service = FastAPI()
    add_handlers(service)

    @service.get("/")
    async def fail() -> None:
        raise error

    answer = TestClient(service).get("/")

    assert (answer.status_code, answer.json()["code"]) == (status, error.code)
    assert answer.headers.get("retry-after") == after
