"""Why a queue starts jobs, or does not."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duetime.domain.jobs.explain import WorkerFacts
from duetime.domain.jobs.explain_queue import explain_queue
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Explanation

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
SOON = NOW + timedelta(seconds=30)
MINUTE = timedelta(minutes=1)
QUEUE = QueueInfo(
    name="mail",
    pending=3,
    due=2,
    running=0,
    parked=0,
    next_run_at=NOW,
    paused_at=None,
    paused_by=None,
    pause_reason=None,
    limits=Limits(),
)
WORKER = WorkerFacts("w1", ["mail"], ["send"], SOON, running=1, concurrency=2)


def explain(*workers: WorkerFacts, **queue: Any) -> Explanation:
    changed = msgspec.structs.replace(QUEUE, **queue)
    return explain_queue(changed, workers=workers or [WORKER], now=NOW)


@pytest.mark.parametrize(
    ("queue", "code", "sentence"),
    [
        ({}, "about_to_run", "has 2 due jobs, and a live worker can start"),
        ({"running": 1}, "working", "1 job is running, and 2 more are due."),
        (
            {"paused_at": NOW, "paused_by": "ann", "pause_reason": "holiday"},
            "paused",
            "was paused at 2026-03-08 12:00:00 UTC by ann: holiday.",
        ),
        ({"due": 0, "pending": 0, "next_run_at": None}, "empty", "No jobs wait in"),
        (
            {"due": 0, "pending": 0, "next_run_at": None, "parked": 4},
            "parked",
            "4 waiting jobs, all parked",
        ),
        ({"due": 0, "next_run_at": SOON}, "not_due", "at 2026-03-08 12:00:30 UTC, in 30s."),
        ({"due": 0, "next_run_at": SOON, "parked": 4}, "not_due", "(3 jobs wait)"),
        ({"limits": Limits(running=2), "running": 2}, "limit_full", "and the limit is 2."),
        ({"limits": Limits(running=2), "running": 1}, "working", "1 job is running"),
        (
            {"limits": Limits(rate=5, period=MINUTE), "started": 5},
            "rate_limited",
            "5 started in the last 1m, and the limit is 5.",
        ),
        ({"limits": Limits(rate=5, period=MINUTE), "started": 4}, "about_to_run", "any moment"),
    ],
)
def test_the_first_reason_that_applies_is_named(
    queue: dict[str, Any], code: str, sentence: str
) -> None:
    explanation = explain(**queue)

    assert explanation.code == code
    assert sentence in explanation.sentence
    assert "'mail'" in explanation.sentence


@pytest.mark.parametrize(
    ("worker", "code", "sentence"),
    [
        (WORKER._replace(lease_until=NOW), "no_worker", "(0 serve other queues)"),
        (WORKER._replace(queues=["print"]), "no_worker", "(1 serves other queues)"),
        (WORKER._replace(running=2), "workers_busy", "1 worker runs 2 jobs, and can run 2."),
    ],
)
def test_reasons_of_the_workers(worker: WorkerFacts, code: str, sentence: str) -> None:
    explanation = explain(worker)

    assert explanation.code == code
    assert sentence in explanation.sentence


def test_the_steps_are_what_was_checked_before() -> None:
    limits = Limits(running=9, rate=5, period=MINUTE, per_partition=1)
    explanation = explain(limits=limits, running=1, parked=1)

    assert explanation.code == "working"
    assert [step.code for step in explanation.steps] == [
        "open", "workers_alive", "some_due", "some_parked", "below_limit", "below_rate",
        "partition_limit",
    ]  # fmt: skip
    assert msgspec.json.decode(msgspec.json.encode(explanation.facts)) == explanation.facts


@pytest.mark.parametrize(
    ("queue", "passed"),
    [
        ({"paused_at": NOW}, [False, None, None, None, None]),
        ({"due": 0, "next_run_at": SOON}, [True, True, False, None, None]),
        ({"limits": Limits(running=2), "running": 2}, [True, True, True, False, None]),
        ({}, [True, True, True, True, True]),
    ],
)
def test_the_chain_goes_up_to_what_keeps_it_from_starting_jobs(
    queue: dict[str, Any], passed: list[bool | None]
) -> None:
    assert [check.passed for check in explain(**queue).checks] == passed


def test_busy_workers_are_the_last_check() -> None:
    busy = msgspec.structs.replace(QUEUE)
    found = explain_queue(busy, workers=[WORKER._replace(running=2)], now=NOW)

    assert found.code == "workers_busy"
    assert [check.passed for check in found.checks] == [True, True, True, True, False]
