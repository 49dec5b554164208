"""A worker's round trip: finish and claim, in one transaction."""

from __future__ import annotations

from collections.abc import Sequence

from duetime.domain.jobs.job import FinishedJob
from duetime.storage.sqlite.claim import claim, claim_limited, first_due, holds_lease
from duetime.storage.sqlite.finish import finish
from duetime.storage.sqlite.moment import from_us
from duetime.storage.sqlite.transaction import Transaction
from duetime.storage.store import Exchange, Lane


def exchange(
    tx: Transaction,
    worker_id: int,
    *,
    ended: Sequence[FinishedJob],
    lanes: Sequence[Lane],
    limited: Sequence[str],
    want: int,
    look_ahead: bool,
    lead: int,
) -> Exchange:
    """Finish what ended, then claim what is due, if the lease holds."""
    refused, cancelled = finish(tx, ended) if ended else (frozenset(), frozenset())
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


def look(
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
