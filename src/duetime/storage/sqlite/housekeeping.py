"""A worker's registration, the rescue of jobs that dead workers held, and pruning."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from duetime.domain.jobs.job import PARKED_CODE, AttemptOutcome, ClaimedJob
from duetime.storage.sqlite import hot_path
from duetime.storage.sqlite.dialect import decode, encode_set, from_us, maybe_to_us, span_to_us
from duetime.storage.sqlite.hot_path import wait_again
from duetime.storage.sqlite.operate import end_waiting
from duetime.storage.sqlite.thread import Transaction
from duetime.storage.store import LEAD, PollResult, Rescued, Row, rescued_state

_QUARANTINE = 10
_SECOND = 1_000_000
_LEAD_US = LEAD // timedelta(microseconds=1)
"""A job may have been claimed so long ahead of its time, and must not be early now."""


def register_worker(
    tx: Transaction,
    *,
    name: str,
    queues: Sequence[str],
    tasks: Mapping[str, Mapping[str, Any]],
    concurrency: int,
    lease: timedelta,
) -> int:
    for task, options in tasks.items():
        tx.run(
            "register_task",
            name=task,
            queue=options["queue"],
            priority=options["priority"],
            max_attempts=options["max_attempts"],
            timeout=maybe_to_us(options["timeout"]),
            expires=maybe_to_us(options["expires"]),
            flow=options.get("flow"),
            now=tx.now,
        )
    worker_id: int = tx.value("next_worker")
    tx.run(
        "register_worker",
        worker=worker_id,
        name=name,
        queues=msgspec.json.encode(list(queues)).decode(),
        tasks=msgspec.json.encode(list(tasks)).decode(),
        concurrency=concurrency,
        now=tx.now,
        lease_until=tx.now + span_to_us(lease),
    )
    tx.run("name_worker", worker=worker_id, name=name, now=tx.now)
    return worker_id


def poll(
    tx: Transaction,
    queues: Sequence[str],
    tasks: Sequence[str],
    sparing: Collection[int],
    *,
    ahead: bool,
) -> PollResult:
    """How the queues of an idle worker stand. This reads only."""
    limited = [row[0] for row in tx.rows("limited_queues") if row[0] in queues]
    first = hot_path.first_due(tx, queues, limited, overdue=True) if ahead else []
    return PollResult(
        from_us(tx.now),
        from_us(min(first)) if first else None,
        tuple(limited),
        tx.value("parked_for", **_parked(tasks, queues, sparing)) != "[]",
        hot_path.any_quarantined(tx, queues),
    )


def unpark(
    tx: Transaction, tasks: Sequence[str], queues: Sequence[str], sparing: Collection[int]
) -> int:
    jobs = tx.value("parked_for", **_parked(tasks, queues, sparing))
    tx.run("wait_again", jobs=jobs)
    return tx.run("leave_parked", jobs=jobs)


def _parked(
    tasks: Sequence[str], queues: Sequence[str], sparing: Collection[int]
) -> dict[str, str]:
    return {
        "tasks": encode_set(tasks),
        "queues": encode_set(queues),
        "sparing": msgspec.json.encode(list(sparing)).decode(),
    }


def long_parked(tx: Transaction, age: timedelta, batch: int) -> list[Row]:
    return tx.rows("long_parked", before=tx.now - span_to_us(age), batch=batch)


def end_parked(tx: Transaction, age: timedelta, batch: int) -> list[int]:
    old = long_parked(tx, age, batch)
    for job_id, reason in old:
        facts = f'{{"why":{reason}}}'
        end_waiting(tx, job_id, "dead", code=PARKED_CODE, facts=facts)
    return [row[0] for row in old]


def set_progress(tx: Transaction, job: ClaimedJob, progress: str) -> bool:
    accepted = tx.rows("set_progress", job=job.id, token=job.token, progress=progress, now=tx.now)
    return bool(accepted)


def rescue(tx: Transaction, sparing: int) -> list[Rescued]:
    """Record the attempts of dead workers as lost; their jobs wait again unless no attempt is left.

    A job that was lost before goes to the quarantine lane, with growing delays, where it runs
    alone: it cannot take others down with it. Jobs that were claimed after the lease are
    given back.
    """
    lost = tx.rows("dead_claims", now=tx.now, sparing=sparing)
    recorded, again, freed, rescued = [], [], [], []
    for (
        job_id, token, attempt, worker_id, claimed_at, task, queue,
        outcome, times, worker, is_limited, reason,
    ) in lost:  # fmt: skip
        if outcome == "given back":
            lane = _QUARANTINE if times >= 2 else None
            run_at = max(tx.now, min(claimed_at, tx.now) + _LEAD_US)
            attempt -= 1
            again.append((job_id, run_at, attempt, lane))
            tx.wake(queue)
            rescued.append(Rescued(job_id, task, attempt, rescued_state(outcome, attempt), worker))
            continue
        if outcome == "cancelled":
            code, error = "cancelled_worker_lost", reason
        else:
            code, error = "worker_lost", None
        recorded.append(
            (job_id, token, attempt, worker_id, outcome, claimed_at, tx.now, code, error)
        )
        if outcome == "lost":
            wait = min(2 ** (times - 1), 60) * _SECOND if times else 0
            lane = _QUARANTINE if times else None
            run_at = max(tx.now + wait, min(claimed_at, tx.now) + _LEAD_US)
            again.append((job_id, run_at, attempt, lane))
        else:
            freed.append((job_id,))
            tx.finished.append(job_id)
        if is_limited or outcome == "lost":
            tx.wake(queue)
        rescued.append(Rescued(job_id, task, attempt, rescued_state(outcome, attempt), worker))
    tx.run_many("record_lost", recorded)
    wait_again(tx, again)
    tx.run_many("free_key", freed)
    tx.run_many("drop_claim", [(row[0],) for row in lost])
    tx.run("bury_workers", now=tx.now)
    return rescued


def prune(tx: Transaction, outcome: AttemptOutcome, age: timedelta, batch: int) -> int:
    jobs = tx.value("old_jobs", outcome=outcome.value, before=tx.now - span_to_us(age), batch=batch)
    if not decode(jobs):
        return 0
    tx.run("prune_attempts", jobs=jobs)
    tx.run("prune_progress", jobs=jobs)
    tx.run("prune_steps", jobs=jobs)
    tx.run("prune_signals", jobs=jobs)
    tx.run("prune_shapes", jobs=jobs)
    return tx.run("prune_jobs", jobs=jobs)


def prune_leftovers(tx: Transaction, age: timedelta) -> None:
    tx.run("prune_keys", now=tx.now)
    tx.run("prune_names", before=tx.now - span_to_us(age))
