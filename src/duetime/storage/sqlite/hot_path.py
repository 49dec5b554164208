"""What workers do with jobs: claim, finish, give back. Functions of a transaction that holds the
write lock, unless they are documented as only reading."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.jobs.job import UNREADABLE, AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.reasons import Reason, write_reason
from duetime.storage.sqlite.dialect import (
    decode,
    encode_ids,
    encode_set,
    from_us,
    maybe_from_us,
    maybe_span,
    repeat_values,
    span_to_us,
    to_us,
)
from duetime.storage.sqlite.thread import Transaction
from duetime.storage.store import MAX_CLAIMED_ARGS, Exchange, Lane, Statements

Again = tuple[int, int, int, int | None]
"""A job that waits again: its id, when it is due, how many attempts count so far, and a priority
other than its own."""

_PRIORITIES = tuple(range(10))
_QUARANTINE = (10,)
"""The lane of jobs that two workers died with."""
_LOOK_AT_LEAST = 1000
_FINISHED_ROWS = 1024
"""How many finished jobs one statement records: SQLite limits its parameters."""


def exchange(
    tx: Transaction,
    worker_id: int,
    *,
    finished: Sequence[FinishedJob],
    lanes: Sequence[Lane],
    limited: Sequence[str],
    want: int,
    look_ahead: bool,
    lead: int,
) -> Exchange:
    """Record finished jobs, then claim due ones, if the lease holds."""
    refused, cancelled = finish(tx, finished) if finished else (frozenset(), frozenset())
    lease_lost = want > 0 and not holds_lease(tx, worker_id)
    if lease_lost:
        want = 0
    claimed = claim(tx, worker_id, lanes, want, lead) if lanes and want > 0 else []
    opens: list[int] = []
    for queue in limited:
        if want > len(claimed):
            rows, open_at = claim_limited(tx, worker_id, queue, want - len(claimed))
            claimed += rows
            opens += [] if open_at is None else [open_at]
    next_run_at = None
    if look_ahead:
        opens += first_due(tx, [lane.queue for lane in lanes], limited)
    if opens:
        next_run_at = from_us(min(opens))
    return Exchange(
        from_us(tx.now), refused, cancelled, claimed, next_run_at, lease_lost=lease_lost
    )


def answer_if_idle(
    tx: Transaction,
    lanes: Sequence[Lane],
    limited: Sequence[str],
    *,
    want: int,
    look_ahead: bool,
    lead: int,
) -> Exchange | None:
    """Return the answer of an exchange that has nothing to do; None: it has.

    This reads only: an idle worker takes no write lock.
    """
    queues = {lane.queue for lane in lanes}
    if want > 0:
        first = first_due(tx, queues, limited, overdue=True)
        if any(run_at <= tx.now + lead for run_at in first):
            return None
    else:
        first = first_due(tx, queues, limited) if look_ahead else []
    next_run_at = from_us(min(first)) if first and look_ahead else None
    return Exchange(from_us(tx.now), next_run_at=next_run_at)


def next_run_at(tx: Transaction, queues: Iterable[str]) -> tuple[datetime, datetime | None]:
    first = first_due(tx, queues, ())
    return from_us(tx.now), from_us(min(first)) if first else None


# Claim


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
        tx.run("set_back_rate", queue=queue, now=tx.now)
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
    """Whether the worker may claim now. Checked under the write lock, for which it may have waited
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

    In queues with limits overdue jobs wait for room, and count only with `overdue`.
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
    """Set aside waiting jobs that cannot be read; return why, for each."""
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


def _order(row: Sequence[Any]) -> tuple[int, int, int]:
    return row[3], row[7], row[0]


def _claimed(rows: Sequence[Any], token: int, now: int, *, limited: bool) -> list[ClaimedJob]:
    claimed_at = from_us(now)
    # In the order of the columns of `due_jobs`; positional, as this is the hot path.
    return [
        ClaimedJob(
            job_id, token, task, queue, priority, args, attempt, max_attempts, from_us(run_at),
            claimed_at, key, partition, maybe_span(timeout), maybe_from_us(expires_at), trace,
            False, limited,
        )
        for (
            job_id, task, queue, priority, args, attempt, max_attempts, run_at, key, partition,
            timeout, expires_at, trace,
        ) in rows
    ]  # fmt: skip


# Finish


def finish(
    tx: Transaction, finished: Sequence[FinishedJob]
) -> tuple[frozenset[int], frozenset[int]]:
    """Record finished jobs that are still held under their token.

    Returns the ids of the jobs that were refused, and of those that were to run again and had been
    cancelled: they do not.
    """
    plain = [one for one in finished if _is_plain(one)]
    full = [one for one in finished if not _is_plain(one)] if len(plain) < len(finished) else []
    cancelled: frozenset[int] = frozenset()
    if again := [one for one in full if one.again_after is not None]:
        cancelled = frozenset(decode(tx.value("cancelled_among", jobs=_encode_plain(again))))
        full = [_stopped(one) if one.job.id in cancelled else one for one in full]
    accepted: list[FinishedJob] = []
    for start in range(0, len(plain), _FINISHED_ROWS):
        accepted += _finish_plain(tx, plain[start : start + _FINISHED_ROWS])
    if full:
        body = _encode_full(full)
        recorded = _find_accepted(tx, full, body, tx.run("finish_fully", jobs=body))
        if again := [one for one in recorded if one.again_after is not None]:
            wait_again(tx, [_again(one, tx.now) for one in again])
        if any(one.job.key is not None for one in full):
            tx.run("free_keys", jobs=body)
            tx.run("keep_keys", jobs=body, now=tx.now)
        # Last of all: the claim is the fence.
        tx.run("close_claims", jobs=body)
        accepted += recorded
    _announce(tx, accepted)
    refused: frozenset[int] = frozenset()
    if len(accepted) < len(finished):
        refused = frozenset(one.job.id for one in finished) - {one.job.id for one in accepted}
    return refused, cancelled


def _finish_plain(tx: Transaction, finished: Sequence[FinishedJob]) -> Sequence[FinishedJob]:
    rows = 1 << (len(finished) - 1).bit_length()
    values: list[int | None] = []
    for one in finished:
        values += (one.job.id, one.job.token, one.started_us, one.finished_us)
    # Rows of nulls match no claim: so there are few statements, and each is prepared once.
    values += [None] * (4 * rows - len(values))
    count = tx.connection.execute(repeat_values(tx.statement("finish"), rows), values).rowcount
    if count == len(finished):
        tx.run("close_accepted", jobs=encode_ids(one.job.id for one in finished))
        return finished
    body = _encode_plain(finished)
    accepted = _find_accepted(tx, finished, body, count)
    tx.run("close_claims", jobs=body)
    return accepted


def _stopped(finished: FinishedJob) -> FinishedJob:
    return msgspec.structs.replace(finished, outcome=AttemptOutcome.CANCELLED, again_after=None)


def _again(finished: FinishedJob, now: int) -> Again:
    """A snooze gives the attempt back."""
    assert finished.again_after is not None
    attempts = finished.job.attempt - (finished.outcome is AttemptOutcome.SNOOZED)
    return finished.job.id, now + span_to_us(finished.again_after), attempts, None


def wait_again(tx: Transaction, jobs: Sequence[Again]) -> None:
    """Put jobs back into `due`. Who sleeps on their queues is woken by the caller."""
    tx.run("wait_again", jobs=msgspec.json.encode(jobs).decode())


def _find_accepted(
    tx: Transaction, finished: Sequence[FinishedJob], body: str, count: int
) -> Sequence[FinishedJob]:
    """Return those that were still held under their token; `count`: how many."""
    if count == len(finished):
        return finished
    held = {tuple(pair) for pair in decode(tx.value("still_held", jobs=body))}
    return [one for one in finished if (one.job.id, one.job.token) in held]


def _announce(tx: Transaction, accepted: Sequence[FinishedJob]) -> None:
    for one in accepted:
        if one.again_after is None:
            tx.finished.append(one.job.id)
            if one.job.limited:
                tx.wake(one.job.queue)
        else:
            tx.wake(one.job.queue, tx.now + span_to_us(one.again_after))


def finish_again(tx: Transaction, finished: Sequence[FinishedJob]) -> Exchange:
    """Finish those that were not finished before."""
    before = {
        tuple(pair) for pair in decode(tx.value("finished_before", jobs=_encode_plain(finished)))
    }
    left = [one for one in finished if (one.job.id, one.job.token) not in before]
    refused, cancelled = finish(tx, left)
    return Exchange(refused=refused, cancelled=cancelled)


def release(tx: Transaction, jobs: Sequence[ClaimedJob]) -> None:
    """Give held jobs back. Those that were lost are left alone, cancelled ones end as cancelled."""
    body = _encode_claims(jobs)
    _end_cancelled(tx, body)
    _give_back(tx, body)
    for job in jobs:
        tx.wake(job.queue)


def park(tx: Transaction, jobs: Sequence[ClaimedJob], reason: Reason) -> None:
    """Set held jobs aside. Those that were lost are left alone, cancelled ones end as cancelled."""
    body = _encode_claims(jobs)
    _end_cancelled(tx, body)
    tx.run("park", jobs=body, reason=write_reason(reason), now=tx.now)
    tx.run("close_claims", jobs=body)
    for job in jobs:
        # In a queue with limits there is room now.
        tx.wake(job.queue)


def _give_back(tx: Transaction, body: str) -> None:
    tx.run("wait_again", jobs=tx.value("given_back", jobs=body))
    tx.run("close_claims", jobs=body)


def _end_cancelled(tx: Transaction, body: str) -> int:
    """End the cancelled ones of these, before they could wait again; return how many."""
    gone = tx.rows("end_cancelled", jobs=body, now=tx.now)
    tx.run_many("free_key", gone)
    tx.run_many("drop_claim", gone)
    tx.finished += [row[0] for row in gone]
    return len(gone)


def disown(tx: Transaction, worker_id: int, known: Sequence[int], lead: int) -> int:
    """Give back jobs that a live worker holds and does not know of, since the answer was lost."""
    rows = tx.rows("unknown_claims", worker=worker_id, known=encode_ids(known))
    # They may have been claimed ahead of their time, and must not be early now.
    body = msgspec.json.encode(
        [
            (job_id, token, max(min(claimed_at, tx.now) + lead, tx.now))
            for job_id, token, claimed_at, _ in rows
        ]
    ).decode()
    cancelled = _end_cancelled(tx, body)
    _give_back(tx, body)
    for *_, queue in rows:
        tx.wake(queue)
    return len(rows) - cancelled


def complete(sql: Mapping[str, str], finished: FinishedJob, now: int) -> Statements:
    """Complete a held job in the caller's own transaction: its writes and the finish commit
    together, or not at all. Returns False if the claim is gone; roll back."""
    job_id, token = finished.job.id, finished.job.token
    held = yield sql["complete_claim"], (job_id, token)
    if not held:
        return False
    attempt, worker_id, claimed_at = held[0]
    started_at, finished_at = claimed_at + finished.started_us, claimed_at + finished.finished_us
    yield (
        sql["complete_attempt"],
        (
            job_id,
            token,
            attempt,
            worker_id,
            claimed_at,
            started_at,
            finished_at,
            finished.result,
            finished.log,
        ),
    )
    if finished.job.key is not None:
        yield sql["complete_free_key"], (job_id,)
        yield sql["complete_keep_key"], (now, job_id)
    return True


def _is_plain(finished: FinishedJob) -> bool:
    return (
        finished.outcome is AttemptOutcome.COMPLETED
        and finished.result is None
        and finished.log is None
        and finished.error_code is None
        and finished.job.key is None
        and finished.again_after is None
    )


def _encode_claims(jobs: Sequence[ClaimedJob]) -> str:
    return msgspec.json.encode([(job.id, job.token, to_us(job.run_at)) for job in jobs]).decode()


def _encode_plain(finished: Sequence[FinishedJob]) -> str:
    return (
        "["
        + ",".join(
            [
                f"[{one.job.id},{one.job.token},{one.started_us},{one.finished_us}]"
                for one in finished
            ]
        )
        + "]"
    )


def _encode_full(finished: Sequence[FinishedJob]) -> str:
    return msgspec.json.encode(
        [
            (
                one.job.id,
                one.job.token,
                one.started_us,
                one.finished_us,
                one.outcome.value,
                None if one.again_after is None else span_to_us(one.again_after),
                one.error_code,
                one.error,
                one.traceback,
                one.result,
                one.facts,
                one.log,
            )
            for one in finished
        ]
    ).decode()
