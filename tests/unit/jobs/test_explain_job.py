"""Why a job is, or is not, running."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from duetime.domain.jobs.explain import WorkerFacts, explain_job
from duetime.domain.jobs.job import JobInfo, JobState
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Explanation, Reason

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
SOON = NOW + timedelta(seconds=30)

PARKED = Reason("task_unknown", {"worker": "w2", "tasks": ["send"]})
JOB = JobInfo(
    id=7,
    task="send",
    queue="mail",
    priority=5,
    state=JobState.PENDING,
    args={},
    attempts=0,
    max_attempts=3,
    run_at=NOW,
    created_at=NOW,
    finished_at=None,
    key=None,
    partition="ann",
    timeout=None,
    expires_at=None,
    worker=None,
    claimed_at=None,
    lease_until=None,
    error_code=None,
    error=None,
    facts=None,
    parked_reason=None,
)
QUEUE = QueueInfo(
    name="mail",
    pending=1,
    due=1,
    running=0,
    parked=0,
    next_run_at=NOW,
    paused_at=None,
    paused_by=None,
    pause_reason=None,
    limits=Limits(),
)
WORKER = WorkerFacts("w1", ["mail"], ["send"], SOON)


def explain(
    job: dict[str, Any] | None = None,
    queue: dict[str, Any] | None = None,
    *,
    workers: tuple[WorkerFacts, ...] = (WORKER,),
    beside: int = 0,
) -> Explanation:
    return explain_job(
        msgspec.structs.replace(JOB, **job or {}),
        queue=msgspec.structs.replace(QUEUE, **queue or {}),
        workers=workers,
        running_in_partition=beside,
        now=NOW,
    )


@pytest.mark.parametrize(
    ("job", "reason", "sentence"),
    [
        ({}, "about_to_run", "should start at any moment"),
        (
            {"run_at": NOW + timedelta(minutes=90)},
            "not_due",
            "it may start at 2026-03-08 13:30:00 UTC, in 1h30m.",
        ),
        (
            {"run_at": SOON, "state": JobState.RETRYING, "attempts": 1, "error": "no line"},
            "not_due",
            "in 30s, after attempt 1 failed (no line).",
        ),
        (
            {"state": JobState.PARKED, "parked_reason": PARKED},
            "parked",
            "worker w2 does not know the task send. It runs as soon as a worker of the queue",
        ),
        (
            {"state": JobState.RUNNING, "worker": "w1", "lease_until": SOON},
            "running",
            "is running on the worker w1, whose lease is valid until 2026-03-08 12:00:30 UTC.",
        ),
        (
            {"state": JobState.RUNNING, "worker": "w1", "lease_until": NOW},
            "worker_lost",
            "lease expired at 2026-03-08 12:00:00 UTC: it will be rescued",
        ),
        ({"state": JobState.RUNNING}, "worker_gone", "a worker that no longer exists"),
        ({"state": JobState.COMPLETED, "finished_at": NOW}, "completed", "completed at 2026-"),
        (
            {"state": JobState.DEAD, "finished_at": NOW, "attempts": 3, "error": "no line"},
            "dead",
            "after 3 of 3 attempts: no line. Requeue it to try again.",
        ),
        (
            {"state": JobState.CANCELLED, "finished_at": NOW, "error": "not wanted"},
            "cancelled",
            "was cancelled at 2026-03-08 12:00:00 UTC: not wanted.",
        ),
        ({"state": JobState.SUPERSEDED, "finished_at": NOW}, "superseded", "was superseded at"),
        ({"state": JobState.EXPIRED, "finished_at": NOW}, "expired", "expired at"),
    ],
)
def test_reasons_of_the_job_itself(job: dict[str, Any], reason: str, sentence: str) -> None:
    explanation = explain(job)

    assert explanation.code == reason
    assert explanation.sentence.startswith("Job 7 ")
    assert sentence in explanation.sentence


@pytest.mark.parametrize(
    ("queue", "beside", "reason", "sentence"),
    [
        (
            {"paused_at": NOW, "paused_by": "ann", "pause_reason": "holiday"},
            0,
            "queue_paused",
            "was paused at 2026-03-08 12:00:00 UTC by ann: holiday.",
        ),
        ({"paused_at": NOW}, 0, "queue_paused", "was paused at 2026-03-08 12:00:00 UTC."),
        ({"limits": Limits(running=2), "running": 2}, 0, "limit_full", "the limit is 2"),
        ({"limits": Limits(running=2), "running": 1}, 0, "about_to_run", "any moment"),
        (
            {"limits": Limits(per_partition=1)},
            1,
            "partition_full",
            "partition 'ann' has 1 running job,",
        ),
        ({"limits": Limits(per_partition=1)}, 0, "about_to_run", "any moment"),
        (
            {"limits": Limits(rate=10, period=timedelta(minutes=1)), "started": 10},
            0,
            "rate_limited",
            "10 jobs of the queue 'mail' started in the last 1m, and the limit is 10.",
        ),
        (
            {"limits": Limits(rate=10, period=timedelta(minutes=1)), "started": 9},
            0,
            "about_to_run",
            "any moment",
        ),
        ({"due": 6}, 0, "in_line", "5 other jobs of its queue are due"),
    ],
)
def test_reasons_of_the_queue(
    queue: dict[str, Any], beside: int, reason: str, sentence: str
) -> None:
    explanation = explain(queue=queue, beside=beside)

    assert explanation.code == reason
    assert sentence in explanation.sentence


@pytest.mark.parametrize(
    ("workers", "reason", "sentence"),
    [
        ((), "no_worker", "no live worker serves the queue 'mail' (0 serve other queues)"),
        ((WorkerFacts("w1", ["mail"], ["send"], NOW),), "no_worker", "(0 serve other queues)"),
        ((WorkerFacts("w2", ["other"], ["send"], SOON),), "no_worker", "(1 serves other queues)"),
        ((WorkerFacts("w3", ["mail"], ["print"], SOON),), "task_unknown", "knows the task 'send'"),
    ],
)
def test_reasons_of_the_workers(
    workers: tuple[WorkerFacts, ...], reason: str, sentence: str
) -> None:
    explanation = explain(workers=workers)

    assert explanation.code == reason
    assert sentence in explanation.sentence


def test_the_nearest_reason_comes_first() -> None:
    """A job that is not due in a paused queue without workers: that it is not due."""
    explanation = explain({"run_at": SOON}, {"paused_at": NOW}, workers=())

    assert explanation.code == "not_due"


def test_a_queue_that_nobody_knows_is_no_obstacle() -> None:
    explanation = explain_job(JOB, queue=None, workers=[WORKER], running_in_partition=0, now=NOW)

    assert explanation.code == "about_to_run"


def test_the_facts_can_be_written_as_json() -> None:
    facts = explain({"run_at": SOON}).facts

    assert (
        msgspec.json.decode(msgspec.json.encode(facts))
        == facts
        == {
            "job": 7,
            "state": "pending",
            "queue": "mail",
            "task": "send",
            "attempts": 0,
            "max_attempts": 3,
            "now": "2026-03-08T12:00:00Z",
            "run_at": "2026-03-08T12:00:30Z",
            "wait": 30,
        }
    )


def test_the_steps_are_what_was_checked_before() -> None:
    limits = Limits(running=2, per_partition=1)
    explanation = explain(queue={"limits": limits, "running": 1}, beside=1)

    assert [step.code for step in explanation.steps] == [
        "due",
        "queue_open",
        "workers_alive",
        "task_known",
        "below_limit",
    ]
    assert explanation.steps[-1].facts == {
        "queue": "mail", "task": "send", "run_at": "2026-03-08T12:00:00Z", "running": 1, "limit": 2,
    }  # fmt: skip
    assert str(explanation.steps[-1]) == "The queue 'mail' has 1 running job, and the limit is 2."
    assert str(explanation) == explanation.sentence
    assert explanation.code == "partition_full"


WAITING = [
    "Is it due?",
    "Is its queue open?",
    "Does a live worker serve the queue?",
    "Does such a worker know its task?",
    "Is there room within the limits?",
    "Is it its turn?",
]


@pytest.mark.parametrize(
    ("job", "queue", "workers", "passed", "code"),
    [
        ({"run_at": SOON}, {}, (WORKER,), 0, "not_due"),
        ({}, {"paused_at": NOW, "paused_by": "ann"}, (WORKER,), 1, "queue_paused"),
        ({}, {}, (), 2, "no_worker"),
        ({"task": "other"}, {}, (WORKER,), 3, "task_unknown"),
        ({}, {"running": 2, "limits": Limits(running=2)}, (WORKER,), 4, "limit_full"),
        ({}, {"due": 5}, (WORKER,), 5, "in_line"),
        ({}, {}, (WORKER,), 6, None),
    ],
)
def test_the_chain_of_a_waiting_job_has_one_failed_check_at_most(
    job: dict[str, Any],
    queue: dict[str, Any],
    workers: tuple[WorkerFacts, ...],
    passed: int,
    code: str | None,
) -> None:
    explained = explain(job, queue, workers=workers)
    checks = explained.checks

    assert [check.question for check in checks] == WAITING
    answers = [True] * passed + [False] * (code is not None)
    assert [check.passed for check in checks] == answers + [None] * (6 - len(answers))
    if code is not None:
        assert (checks[passed].code, checks[passed].sentence) == (code, explained.sentence)
    assert all((check.sentence is None) == (check.passed is None) for check in checks)


def test_a_check_of_limits_tells_each_that_has_room() -> None:
    limits = Limits(running=2, per_partition=1, rate=9, period=timedelta(minutes=1))

    room = explain(queue={"limits": limits}).checks[4]
    full = explain(queue={"limits": limits}, beside=1).checks[4]
    none = explain().checks[4]

    assert room.sentence is not None
    assert room.sentence.count("and the limit is") == 3
    assert (full.passed, full.code) == (False, "partition_full")
    assert (none.passed, none.code) == (True, "no_limit")


@pytest.mark.parametrize(
    ("job", "answers"),
    [
        (
            {"state": JobState.RUNNING, "attempts": 1, "worker": "w1", "lease_until": SOON},
            [("begun", True), ("running", True), (None, None)],
        ),
        (
            {"state": JobState.RUNNING, "attempts": 1, "worker": "w1", "lease_until": NOW},
            [("begun", True), ("worker_lost", False), (None, None)],
        ),
        (
            {"state": JobState.COMPLETED, "attempts": 1, "finished_at": NOW},
            [("begun", True), ("completed", True)],
        ),
        (
            {"state": JobState.DEAD, "attempts": 3, "finished_at": NOW, "error": "no line"},
            [("begun", True), ("dead", False)],
        ),
        ({"state": JobState.CANCELLED, "finished_at": NOW}, [("cancelled", False)]),
        (
            {"state": JobState.PARKED, "parked_reason": PARKED},
            [("parked", False), (None, None)],
        ),
    ],
)
def test_the_chain_of_other_jobs_is_short(
    job: dict[str, Any], answers: list[tuple[str | None, bool | None]]
) -> None:
    assert [(check.code, check.passed) for check in explain(job).checks] == answers


def test_a_replay_is_told_beside_the_chain() -> None:
    assert [step.code for step in explain({"replay_of": 3}).other_steps] == ["replay"]
