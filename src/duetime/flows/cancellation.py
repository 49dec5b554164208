"""Cancellations that reach a flow's function during a call that has happened all the same."""

from __future__ import annotations

import asyncio
from typing import Any

from duetime.engine.context import Context
from duetime.engine.executor import is_cancelled
from duetime.flows.branches import Branch


class Cancellation:
    """Postpones cancellations until the function has received the result of such a call: it has to
    register what undoes it."""

    def __init__(self, ctx: Context) -> None:
        self._ctx = ctx
        self.limit: asyncio.Timeout | None = None
        """What cancels the function when its time is up."""
        self.postponed: set[asyncio.Task[Any]] = set()
        """Branches in which a cancellation is raised when they wait next."""

    def has_stopped(self, branch: Branch, error: BaseException) -> bool:
        """Whether the function is cancelled because the run is, or because its time is up; or one
        of its branches because a task group ends."""
        if not isinstance(error, asyncio.CancelledError) or not is_cancelled(error):
            return False
        if not (branch.has_tasks and branch.task is asyncio.current_task()):
            return True
        # It may be the body of a task group, which does not end by the cancellation: Python before
        # 3.13 would raise it again after the group.
        return self._ctx.cancel_requested or (self.limit is not None and self.limit.expired())

    def postpone(self) -> None:
        """Cancel the current task again, where it waits next."""
        task = asyncio.current_task()
        assert task is not None
        self.postponed.add(task)
        task.uncancel()
        task.cancel()

    def has_been_raised(self) -> bool:
        """Whether a cancellation was raised in the current task: a replay does not come here."""
        task = asyncio.current_task()
        return bool(task and task.cancelling()) and task not in self.postponed
