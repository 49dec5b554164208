"""The chain of checks behind a run of a flow."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from duetime.domain.flows.explain import explain_run
from duetime.domain.flows.flow import StepInfo, StepState
from duetime.domain.flows.run import FlowInfo, FlowState
from duetime.domain.reasons import Check, Explanation

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
SIGNAL = StepInfo(
    seq=1, kind="signal", name="paid", state=StepState.WAITING, attempt=1, started_at=NOW
)
RUN = FlowInfo(
    id=42, flow="order", state=FlowState.WAITING, args={}, key=None, queue="default", priority=5,
    parent=None, created_at=NOW, started_at=NOW, run_at=None, finished_at=None, worker=None,
    waits=(SIGNAL,), error_code=None, error=None, parked_reason=None,
)  # fmt: skip
JOB = Explanation("no_worker", "No worker.", {}, (), (Check("Is it due?", True),))


def chain(**changes: Any) -> list[tuple[str, bool | None]]:
    run = msgspec.structs.replace(RUN, **changes)
    found = explain_run(run, steps=run.waits, job=JOB, now=NOW)
    return [(check.question, check.passed) for check in found.checks]


def test_the_chain_of_a_run_has_what_it_waits_for() -> None:
    assert chain() == [
        ("Has it begun?", True),
        ("Has the signal 'paid' arrived?", False),
        ("Has it completed?", None),
    ]


def test_a_run_that_waits_for_a_worker_has_the_chain_of_its_job() -> None:
    assert chain(state=FlowState.PENDING, waits=()) == [("Is it due?", True)]


@pytest.mark.parametrize(
    ("state", "passed"), [(FlowState.COMPLETED, True), (FlowState.FAILED, False)]
)
def test_the_chain_of_a_run_that_has_ended_says_how(
    state: FlowState,
    passed: bool,
) -> None:
    assert chain(state=state, waits=(), finished_at=NOW) == [("Has it completed?", passed)]
