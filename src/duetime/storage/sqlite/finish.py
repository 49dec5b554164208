"""Finish and give back: functions of a transaction that holds the write lock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.storage.sqlite.claim import decode, encode_ids
from duetime.storage.sqlite.moment import span_to_us, to_us
from duetime.storage.sqlite.transaction import Transaction
from duetime.storage.store import Exchange, Statements


def finish(tx: Transaction, ended: Sequence[FinishedJob]) -> tuple[frozenset[int], frozenset[int]]:
    """Record what ended and is still held under its token.

    Returns the ids of the others, and of those that were to run again and had been cancelled:
    they do not.
    """
    plain = [end for end in ended if _is_plain(end)]
    full = [end for end in ended if not _is_plain(end)] if len(plain) < len(ended) else []
    refused: frozenset[int] = frozenset()
    cancelled: frozenset[int] = frozenset()
    if again := [end for end in full if end.again_after is not None]:
        cancelled = frozenset(decode(tx.value("cancelled_among", ended=_encode_plain(again))))
        full = [_stopped(end) if end.job.id in cancelled else end for end in full]
    if plain:
        body = _encode_plain(plain)
        accepted = tx.run("finish", ended=body)
        refused |= _let_go(tx, plain, body, accepted)
    if full:
        body = _encode_full(full)
        accepted = tx.run("finish_fully", ended=body)
        if any(end.again_after is not None for end in full):
            tx.run("run_again", ended=body, now=tx.now)
        if any(end.job.key is not None for end in full):
            tx.run("free_keys", ended=body)
            tx.run("keep_keys", ended=body, now=tx.now)
        refused |= _let_go(tx, full, body, accepted)
    return refused, cancelled


def _stopped(end: FinishedJob) -> FinishedJob:
    return msgspec.structs.replace(end, outcome=AttemptOutcome.CANCELLED, again_after=None)


def _let_go(
    tx: Transaction, ended: Sequence[FinishedJob], body: str, accepted: int
) -> frozenset[int]:
    """End the claims of what was accepted, last of all: the claim is the fence."""
    refused: frozenset[int] = frozenset()
    if accepted < len(ended):
        held = set(decode(tx.value("still_held", ended=body)))
        refused = frozenset(end.job.id for end in ended if end.job.id not in held)
    tx.run("let_go", ended=body)
    for end in ended:
        if end.job.id in refused:
            continue
        if end.again_after is None:
            tx.ended.append(end.job.id)
            if end.job.limited:
                tx.wake(end.job.queue)
        else:
            tx.wake(end.job.queue, tx.now + span_to_us(end.again_after))
    return refused


def settle(tx: Transaction, ended: Sequence[FinishedJob]) -> Exchange:
    """Finish what was not finished before."""
    before = {
        tuple(pair) for pair in decode(tx.value("finished_before", ended=_encode_plain(ended)))
    }
    left = [end for end in ended if (end.job.id, end.job.token) not in before]
    refused, cancelled = finish(tx, left)
    return Exchange(refused=refused, cancelled=cancelled)


def end_waiting(
    tx: Transaction,
    job_id: int,
    outcome: str,
    *,
    code: str | None = None,
    error: str | None = None,
    facts: str | None = None,
) -> None:
    """End a job that waits, in `due` or set aside."""
    said = {"code": code, "error": error, "facts": facts}
    tx.run("end_waiting", job=job_id, outcome=outcome, **said, now=tx.now)
    tx.ended.append(job_id)


def put(tx: Transaction, how: str, jobs: Sequence[ClaimedJob], **more: Any) -> None:
    """Move held jobs from `claim` to where they wait; those that were lost stay untouched, and
    those that were cancelled end."""
    body = msgspec.json.encode([(job.id, job.token, to_us(job.run_at)) for job in jobs]).decode()
    _end_cancelled(tx, body)
    tx.run(how, ended=body, **more)
    tx.run("let_go", ended=body)
    for job in jobs:
        tx.wake(job.queue)


def _end_cancelled(tx: Transaction, body: str) -> int:
    """End what was cancelled, before it could wait again; return how many."""
    gone = tx.rows("end_cancelled", ended=body, now=tx.now)
    tx.run_many("free_key", gone)
    tx.run_many("drop_claim", gone)
    tx.ended += [row[0] for row in gone]
    return len(gone)


def disown(tx: Transaction, worker_id: int, known: Sequence[int], lead: int) -> int:
    """Give back what a live worker holds and does not know of: the answer was lost."""
    rows = tx.rows("unknown_claims", worker=worker_id, known=encode_ids(known))
    # They may have been claimed ahead of their time, and must not be early now.
    body = msgspec.json.encode(
        [
            (job_id, token, max(min(claimed_at, tx.now) + lead, tx.now))
            for job_id, token, claimed_at, _ in rows
        ]
    ).decode()
    cancelled = _end_cancelled(tx, body)
    tx.run("put_back", ended=body)
    tx.run("let_go", ended=body)
    for *_, queue in rows:
        tx.wake(queue)
    return len(rows) - cancelled


def complete(sql: Mapping[str, str], end: FinishedJob, now: int) -> Statements:
    """Complete a held job in the caller's own transaction: its writes and the finish commit
    together, or not at all. Returns False if the claim is gone; roll back."""
    job_id, token = end.job.id, end.job.token
    held = yield sql["complete_claim"], (job_id, token)
    if not held:
        return False
    attempt, worker_id, claimed_at = held[0]
    started_at, finished_at = claimed_at + end.started_us, claimed_at + end.finished_us
    yield (
        sql["complete_attempt"],
        (job_id, token, attempt, worker_id, claimed_at, started_at, finished_at, end.result),
    )
    if end.job.key is not None:
        yield sql["complete_free_key"], (job_id,)
        yield sql["complete_keep_key"], (now, job_id)
    return True


def _is_plain(end: FinishedJob) -> bool:
    return (
        end.outcome is AttemptOutcome.COMPLETED
        and end.result is None
        and end.error_code is None
        and end.job.key is None
        and end.again_after is None
    )


def _encode_plain(ended: Sequence[FinishedJob]) -> str:
    return (
        "["
        + ",".join(
            [f"[{end.job.id},{end.job.token},{end.started_us},{end.finished_us}]" for end in ended]
        )
        + "]"
    )


def _encode_full(ended: Sequence[FinishedJob]) -> str:
    return msgspec.json.encode(
        [
            (
                end.job.id,
                end.job.token,
                end.started_us,
                end.finished_us,
                end.outcome.value,
                None if end.again_after is None else span_to_us(end.again_after),
                end.error_code,
                end.error,
                end.traceback,
                end.result,
                end.facts,
            )
            for end in ended
        ]
    ).decode()
