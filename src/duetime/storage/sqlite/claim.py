"""Claim what is due: functions of a transaction that holds the write lock."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from duetime.domain.jobs.job import UNREADABLE, ClaimedJob
from duetime.domain.reasons import Reason, write_reason
from duetime.storage.sqlite.moment import from_us, maybe_from_us, maybe_span
from duetime.storage.sqlite.transaction import Transaction
from duetime.storage.store import MAX_CLAIMED_ARGS, Lane

decode = msgspec.json.Decoder(list[Any]).decode

_PRIORITIES = tuple(range(10))
_QUARANTINE = (10,)
"""The lane of jobs that two workers died with."""
_LOOK_AT_LEAST = 1000


def claim(
    tx: Transaction, worker_id: int, lanes: Sequence[Lane], want: int, lead: int
) -> list[ClaimedJob]:
    """Take the first jobs that are due, or will be within `lead`, lane by lane in this order."""
    until = tx.now + lead
    filled = {
        (queue, priority)
        for queue, priority, run_at in decode(
            tx.value("lanes", queues=encode_set(lane.queue for lane in lanes))
        )
        if run_at <= until
    }
    rows: list[Any] = []
    for lane in lanes:
        if (lane.queue, lane.priority) not in filled or len(rows) >= want:
            continue
        filled.discard((lane.queue, lane.priority))
        found = tx.value(
            "due_jobs",
            queue=lane.queue,
            priority=lane.priority,
            now=until,
            want=want - len(rows),
            most_args=MAX_CLAIMED_ARGS,
        )
        taken = decode(found)
        # In the order of their lanes until here; workers get them in the order of priority.
        rows = sorted(rows + taken, key=_order) if rows else taken
    return _hold(tx, worker_id, rows, "hold")


def claim_limited(
    tx: Transaction,
    worker_id: int,
    queue: str,
    want: int,
    *,
    priorities: Sequence[int] = _PRIORITIES,
) -> tuple[list[ClaimedJob], int | None]:
    """Take due jobs of a queue as far as its limits allow. The write lock makes counts exact.

    Also returns when a rate limit lets the next one through, if it is used up.
    """
    rules = tx.rows("queue_rules", queue=queue)
    if not rules:
        return [], None
    running, per_partition, rate, period = rules[0]
    room = want
    if running is not None:
        room = min(room, running - tx.value("count_running", queue=queue))
    open_at = None
    if rate is not None:
        tx.run("forget_rate", queue=queue, before=tx.now - period)
        used, first = tx.rows("rate_used", queue=queue)[0]
        room = min(room, rate - used)
        if used >= rate:
            open_at = first + period
    if room <= 0:
        return [], open_at
    jobs = _choose(tx, queue, room, per_partition, priorities)
    if not jobs:
        return [], None
    if rate is not None:
        tx.run("use_rate", queue=queue, now=tx.now, used=len(jobs))
    return _hold_chosen(tx, worker_id, jobs, "hold_limited"), None


def holds_lease(tx: Transaction, worker_id: int) -> bool:
    """Whether the worker may claim now. Asked under the write lock, for which it may have waited
    longer than its lease."""
    return bool(tx.value("holds_lease", worker=worker_id, now=tx.now))


def any_quarantined(tx: Transaction, queues: Sequence[str]) -> bool:
    """Whether `claim_quarantined` may find something. This reads only."""
    return bool(tx.value("any_quarantined", queues=encode_set(queues), now=tx.now))


def claim_quarantined(tx: Transaction, worker_id: int, queues: Sequence[str]) -> list[ClaimedJob]:
    """Take one job of the quarantine lane, alone in its claim."""
    if not holds_lease(tx, worker_id):
        return []
    for queue in queues:
        kind = tx.rows("queue_kind", queue=queue)
        paused, is_limited = kind[0] if kind else (False, False)
        if paused:
            continue
        if is_limited:
            claimed, _ = claim_limited(tx, worker_id, queue, 1, priorities=_QUARANTINE)
        else:
            jobs = _choose(tx, queue, 1, None, _QUARANTINE)
            claimed = _hold_chosen(tx, worker_id, jobs, "hold")
        if claimed:
            return claimed
    return []


def first_due(
    tx: Transaction, queues: Iterable[str], limited: Sequence[str], *, overdue: bool = False
) -> list[int]:
    """When the first job of each lane is due. Overdue counts: it must not be slept over.

    In queues with limits what is overdue waits for room, and counts only if asked for.
    """
    lanes = decode(tx.value("lanes", queues=encode_set(queues)))
    if limited:
        after = -1 if overdue else tx.now
        lanes += decode(tx.value("limited_lanes", queues=encode_set(limited), after=after))
    return [lane[2] for lane in lanes]


def _choose(
    tx: Transaction,
    queue: str,
    room: int,
    per_partition: int | None,
    priorities: Sequence[int],
) -> list[int]:
    """Return the first due jobs of a queue, no more of a partition than may run."""
    running: dict[str, int] = {}
    if per_partition is not None:
        running = dict(tx.rows("count_partitions", queue=queue))
    chosen: list[int] = []
    for priority in priorities:
        if len(chosen) == room:
            break
        full = [name for name, count in running.items() if count >= (per_partition or 0)]
        left = room - len(chosen)
        found = tx.value(
            "due_partitions",
            queue=queue,
            priority=priority,
            now=tx.now,
            full=encode_set(full),
            want=left if per_partition is None else max(left * 10, _LOOK_AT_LEAST),
        )
        for job_id, partition in decode(found):
            if per_partition is not None and partition is not None:
                if running.get(partition, 0) >= per_partition:
                    continue
                running[partition] = running.get(partition, 0) + 1
            chosen.append(job_id)
            if len(chosen) == room:
                break
    return chosen


def _hold_chosen(
    tx: Transaction, worker_id: int, jobs: Sequence[int], how: str
) -> list[ClaimedJob]:
    rows = decode(_chosen(tx, jobs)) if jobs else []
    return _hold(tx, worker_id, sorted(rows, key=_order), how)


def _chosen(tx: Transaction, jobs: Sequence[int]) -> str:
    chosen: str = tx.value("chosen_jobs", jobs=encode_ids(jobs), most_args=MAX_CLAIMED_ARGS)
    return chosen


def _hold(tx: Transaction, worker_id: int, rows: Sequence[Any], how: str) -> list[ClaimedJob]:
    """Move jobs from `due` into `claim`, under a token of their own."""
    if not rows:
        return []
    token = tx.value("next_token")
    jobs = encode_ids(row[0] for row in rows)
    tx.run(how, token=token, worker=worker_id, now=tx.now, jobs=jobs)
    tx.run("leave_due", jobs=jobs)
    return _claimed(rows, token, tx.now, limited=how == "hold_limited")


def park_unreadable(tx: Transaction, queues: Sequence[str], most: int) -> dict[int, str]:
    """Set aside what waits and cannot be read; return why, for each."""
    parked: dict[int, str] = {}
    for (job_id,) in tx.rows("due_ids", queues=encode_set(queues), most=most):
        try:
            decode(_chosen(tx, [job_id]))
        except (sqlite3.Error, ValueError) as error:
            reason = Reason.of(UNREADABLE, text=str(error))
            parked[job_id] = str(reason)
            tx.run("park_unreadable", job=job_id, reason=write_reason(reason), now=tx.now)
            tx.run("leave_due", jobs=encode_ids([job_id]))
    return parked


def encode_ids(ids: Iterable[int]) -> str:
    return "[" + ",".join(map(str, ids)) + "]"


def encode_set(names: Iterable[str]) -> str:
    return msgspec.json.encode(sorted(set(names))).decode()


def _order(row: Sequence[Any]) -> tuple[int, int, int]:
    return row[3], row[7], row[0]


def _claimed(rows: Sequence[Any], token: int, now: int, *, limited: bool) -> list[ClaimedJob]:
    claimed_at = from_us(now)
    # In the order of the columns of `due_jobs`; positional, as this is the hot path.
    return [
        ClaimedJob(
            job_id, token, task, queue, priority, args, attempt, max_attempts, from_us(run_at),
            claimed_at, key, partition, maybe_span(timeout), maybe_from_us(expires_at), trace,
            limited,
        )
        for (
            job_id, task, queue, priority, args, attempt, max_attempts, run_at, key, partition,
            timeout, expires_at, trace,
        ) in rows
    ]  # fmt: skip
