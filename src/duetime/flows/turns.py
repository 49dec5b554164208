"""In which order the recorded calls of a run return in a replay."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Iterable, Mapping
from typing import Any

from duetime.domain.flows.flow import StepRecord


class Turns:
    """Lets recorded calls return in the order in which they ended, where that matters.

    In a replay the results of all calls are there at once. But an error that ends a task group cuts
    the other branches off, and each of them must have come exactly as far as it had then; and
    `asyncio.wait` returns with the first. So if a call is made or awaited in a task, or raised an
    error, every call waits for its turn. Otherwise the order does not matter: `gather` waits for
    all of its branches.
    """

    def __init__(self, records: Mapping[int, StepRecord], *, in_tasks: bool) -> None:
        self.only_replays = False
        """The run ends or has ended: the function is called for its compensations alone."""
        self._records = records
        self.is_behind = bool(records)
        """The function may not have come to all that is recorded."""
        self.unordered_tasks: set[asyncio.Task[Any]] = set()
        """Tasks that await the calls of others, and do not depend on which ends first."""
        self._order: dict[int, int] | None = None
        """The place of each call in the order in which they ended. None: calls take no turns."""
        self._ended: list[tuple[int, asyncio.Future[None]]] = []
        """A heap of the calls that wait for their turn, by their places."""
        self._open: list[asyncio.Future[None]] = []
        """Those that have not ended, whose turn is after all others."""
        if in_tasks or any(record.has_raised for record in records.values()):
            self._keep_order()

    def replay_only(self) -> None:
        """Replay what is recorded, and let nothing begin."""
        self.only_replays = True
        self._keep_order()

    def add_task(self) -> None:
        """The function makes or awaits a call in a task that was not made by `gather`."""
        if self.is_behind and self._order is None:
            self._keep_order()

    def _keep_order(self) -> None:
        ended = [seq for seq, record in self._records.items() if record.has_ended]
        self._order = {seq: place for place, seq in enumerate(ended)}

    @property
    def are_awaited(self) -> bool:
        return bool(self._ended or self._open)

    def line_up(self, records: Iterable[StepRecord | None]) -> asyncio.Future[None] | None:
        """Return what is done when a call with these records may return, raise or begin. None: it
        may do so now."""
        order = self._order
        if order is None:
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        places = [-1 if one is None else order.get(one.seq, -1) for one in records]
        if -1 in places:
            self._open.append(turn)
        else:
            heapq.heappush(self._ended, (max(places), turn))
        return turn

    def next(self) -> None:
        """Let the next call go on, or all that have not ended if no other waits."""
        while self._ended:
            _, turn = heapq.heappop(self._ended)
            # It may be in a branch that was cut off.
            if not turn.done():
                turn.set_result(None)
                return
        if not self.only_replays:
            self._order, self.is_behind = None, False
        for turn in self._open:
            if not turn.done():
                turn.set_result(None)
        self._open.clear()
