"""Why a queue starts jobs, or does not: a code, one sentence, and the facts behind it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.jobs.explain import (
    WorkerFacts,
    check_rate,
    check_running,
    count_waiting,
    pause_facts,
    round_wait,
)
from duetime.domain.jobs.queue import QueueInfo
from duetime.domain.reasons import Check, Explanation, Question, make_checks, make_explanation

QUEUE_SENTENCES = {
    # What keeps it from starting jobs.
    "paused": "The queue {queue!r} starts no jobs: it was paused at {paused_at:utc}"
    "[ by {paused_by}][: {text}].",
    "no_worker": "The queue {queue!r} starts no jobs: no live worker serves it "
    "({elsewhere:serves/serve} other queues).",
    "empty": "No jobs wait in the queue {queue!r}.",
    "parked": "The queue {queue!r} has {parked:waiting job/waiting jobs}, all parked. List them "
    "with `duetime jobs list --state parked`.",
    "not_due": "Nothing in the queue {queue!r} is due ({pending:job waits/jobs wait}). The next "
    "job may start at {next_run_at:utc}, in {wait:span}.",
    "limit_full": "The queue {queue!r} starts no more jobs now: {running:is/are} running, and the "
    "limit is {limit}.",
    "rate_limited": "The queue {queue!r} starts no more jobs now: {started} started in the last "
    "{period:span}, and the limit is {limit}.",
    "workers_busy": "The queue {queue!r} has {due:due job/due jobs} but no free worker: "
    "{count:worker runs/workers run} {busy:job/jobs}, and can run {concurrency}.",
    # Nothing does.
    "working": "The queue {queue!r} is working: {running:job is/jobs are} running, and "
    "{due:more is/more are} due.",
    "about_to_run": "The queue {queue!r} has {due:due job/due jobs}, and a live worker can "
    "start work at any moment.",
    # What was checked before.
    "open": "It is not paused.",
    "workers_alive": "{count:live worker serves/live workers serve} it.",
    "some_due": "{pending:job waits/jobs wait}; {due:is/are} due.",
    "some_running": "{running:of its jobs is/of its jobs are} running.",
    "some_parked": "{parked:more job is/more jobs are} parked: no worker that claimed them "
    "could run them.",
    "below_limit": "{running:of its jobs is/of its jobs are} running, and the limit is {limit}.",
    "below_rate": "{started} of its jobs started in the last {period:span}, and the limit is "
    "{limit}.",
    "partition_limit": "At most {limit:job/jobs} of one partition may run at once.",
    # What only the chain of checks tells.
    "no_limit": "It has no limits.",
}
_QUESTIONS = (
    Question("Is it open?", ["open"], ["paused"]),
    Question("Does a live worker serve it?", ["workers_alive"], ["no_worker"]),
    Question("Is one of its jobs due?", ["some_due"], ["empty", "parked", "not_due"]),
    Question(
        "Is there room within its limits?",
        ["below_limit", "below_rate", "partition_limit", "no_limit"],
        ["limit_full", "rate_limited"],
    ),
    Question("Does a worker have a free place?", ["working", "about_to_run"], ["workers_busy"]),
)
_PASSED = {
    "open", "workers_alive", "some_due", "some_running", "some_parked", "below_limit", "below_rate",
    "partition_limit",
}  # fmt: skip


def explain_queue(
    queue: QueueInfo, *, workers: Sequence[WorkerFacts], now: datetime
) -> Explanation:
    """Return the first reason for which no job of the queue starts, or that they do. Its steps are
    what was checked before.
    """
    facts: dict[str, Any] = {
        "queue": queue.name,
        "pending": count_waiting(queue, queue.pending),
        "due": count_waiting(queue, queue.due),
        "running": queue.running,
        "parked": queue.parked,
        "next_run_at": queue.next_run_at,
        "now": now,
    }
    checks: list[Explanation] = []
    for code, more in _check(queue, workers, now):
        if code not in _PASSED:
            found = make_explanation(QUEUE_SENTENCES, code, facts | more, steps=checks)
            return msgspec.structs.replace(found, checks=_make_chain(found))
        checks.append(make_explanation(QUEUE_SENTENCES, code, more))
    raise AssertionError("unreachable")


def _make_chain(found: Explanation) -> tuple[Check, ...]:
    facts = [*found.steps, found]
    limits = _QUESTIONS[3]
    if found.code in ("workers_busy", "working", "about_to_run") and not any(
        fact.code in limits.passing for fact in facts
    ):
        facts.insert(0, make_explanation(QUEUE_SENTENCES, "no_limit", {}))
    return make_checks(_QUESTIONS, facts)


def _check(
    queue: QueueInfo, workers: Sequence[WorkerFacts], now: datetime
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the codes of checks that are passed, then the one that says how the queue stands."""
    if queue.paused_at is not None:
        yield "paused", pause_facts(queue)
        return
    yield "open", {}
    alive = [worker for worker in workers if worker.lease_until > now]
    serving = [worker for worker in alive if queue.name in worker.queues]
    if not serving:
        yield "no_worker", {"elsewhere": len(alive), "workers": [worker.name for worker in alive]}
        return
    yield "workers_alive", {"count": len(serving), "workers": [worker.name for worker in serving]}
    if not queue.due:
        yield from _check_idle(queue, now)
        return
    counts = {"due": queue.due, "pending": queue.pending}
    yield "some_due", {name: count_waiting(queue, count) for name, count in counts.items()}
    if queue.parked:
        yield "some_parked", {"parked": queue.parked}
    yield from check_running(queue)
    yield from check_rate(queue)
    if queue.limits.per_partition is not None:
        yield "partition_limit", {"limit": queue.limits.per_partition}
    busy = sum(worker.running for worker in serving)
    concurrency = sum(worker.concurrency for worker in serving)
    if busy >= concurrency:
        counts = {"count": len(serving), "busy": busy, "concurrency": concurrency}
        yield "workers_busy", counts
    yield "working" if queue.running else "about_to_run", {}


def _check_idle(queue: QueueInfo, now: datetime) -> Iterator[tuple[str, dict[str, Any]]]:
    """Nothing is due."""
    if queue.running:
        yield "some_running", {"running": queue.running}
    if queue.next_run_at is not None:
        if queue.parked:
            yield "some_parked", {"parked": queue.parked}
        yield "not_due", {"wait": round_wait(max(queue.next_run_at - now, timedelta(0)))}
    yield "parked" if queue.parked else "empty", {}
