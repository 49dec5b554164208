"""`duetime.rearm`: the task, known to every worker, that re-arms subjects marked as stale.

Who cannot compute reminders (a trigger of SQLite, SQL for a recurring subject) sets the subject's
`rearm_at` and enqueues this job, in one transaction.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from duetime.domain.jobs.outcome import Snooze
from duetime.domain.jobs.task import TaskDefinition, own_options
from duetime.domain.reasons import Reason
from duetime.domain.reminders.reminder import REARM_TASK
from duetime.engine.context import Context
from duetime.errors import InvalidInput
from duetime.storage.reminders.rearm import RearmStatements
from duetime.storage.reminders.tracking import ChangeStatements
from duetime.storage.store import Store
from duetime.telemetry.events import log_event

if TYPE_CHECKING:
    from duetime.app import Duetime

log = logging.getLogger("duetime.rearm")

_BATCH = 500
"""How many subjects are locked at once: others wait for them."""
_NEAREST = 10_000
"""Of more marked subjects than one batch, so many that are due next are armed before the rest."""
_PART = 2000
"""How many subjects are armed again at once after a change of a scope: others that change one of
these scopes wait."""
_AT_ONCE = 2
"""How many such parts are armed at the same time, each by a session of its own."""
_AGAIN = "100ms"
"""When to try again subjects that another transaction has locked."""


def rearm_task(app: Duetime) -> TaskDefinition:
    """Return the task `duetime.rearm` of an app."""

    is_running = is_requested = False

    async def rearm() -> Any:
        # A large back-fill requests hundreds of these jobs. One of them arms all there is; the
        # others would take the worker's runners and connections from what is due.
        nonlocal is_running, is_requested
        is_requested = True
        if is_running:
            # It starts over. If it fails, or its worker does, its job comes back.
            return None
        is_running = True
        try:
            outcome = None
            while is_requested:
                is_requested = False
                outcome = await rearm_stale(app)
            return outcome
        finally:
            is_running = False

    return TaskDefinition(rearm, name=REARM_TASK, options=own_options(), context_type=Context)


async def rearm_stale(app: Duetime) -> Snooze | None:
    """Re-arm every subject that is marked, some at a time, each batch in its transaction.

    A job that dies in between is rescued and continues: what is still marked is still stale.
    """
    store = await app.store()
    statements = RearmStatements(store.dialect)
    if not store.dialect.arms:
        # The changes that triggers recorded come first: they hold more than a mark does.
        changes = ChangeStatements(store.dialect)
        while await store.transact(changes.apply(_BATCH), computes=True):
            pass
    after = 0
    while marked := await store.transact(statements.stale(after, _BATCH), reads=True):
        if after == 0 and len(marked) == _BATCH:
            nearest = await store.transact(statements.nearest(_NEAREST), reads=True)
            for place in range(0, len(nearest), _BATCH):
                await _rearm_these(store, statements, nearest[place : place + _BATCH])
        after = marked[-1]
        await _rearm_these(store, statements, marked)
    locked = await _follow_changes(store, statements)
    if locked or await store.transact(statements.stale(0, 1), reads=True):
        # Locked by others, or marked meanwhile. The transaction that locked one may roll back
        # and leave the mark as it was, so this job has to run again.
        return Snooze(_AGAIN, Reason("subjects_locked"))
    return None


async def _follow_changes(store: Store, statements: RearmStatements) -> bool:
    """Arm the subjects again that changes of scopes concern; return whether others have locked some
    of them."""

    async def follow() -> bool:
        while (count := await store.transact(statements.follow_changes(_PART))) is not None:
            if count < 0:
                return True
        return False

    # The first call lists the parts of a change; before that there is nothing to share.
    if await store.transact(statements.follow_changes(_PART)) is None:
        return False
    found = await asyncio.gather(*(follow() for _ in range(_AT_ONCE)), return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return any(found)


async def _rearm_these(store: Store, statements: RearmStatements, ids: Sequence[int]) -> None:
    try:
        await store.transact(statements.rearm(ids), computes=True)
    except InvalidInput as error:
        if len(ids) > 1:
            for one in ids:
                await _rearm_these(store, statements, [one])
            return
        # One that cannot be read must not hold up the others for ever.
        log_event(
            log,
            logging.ERROR,
            "rearm_failed",
            "The reminders of subject %(subject_id)s cannot be computed: %(error)s",
            subject_id=ids[0],
            error=str(error),
        )
        await store.transact(statements.give_up(ids[0], str(error)))
