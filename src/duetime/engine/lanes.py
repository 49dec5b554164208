"""The lanes that a worker claims from, in turn, and from which due time on."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime

from duetime.domain.checks import LAST_PRIORITY
from duetime.domain.jobs.job import ClaimedJob
from duetime.storage.store import Lane

_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)
_FLOOR_SECONDS = 1.0


class Lanes:
    """The lanes of a worker's queues.

    A lane's floor is the last job up to which everything was claimed, so that a claim need not read
    dead rows again. Floors are reset every second: a transaction of another worker that was
    rolled back may have left jobs below them.
    """

    def __init__(self, queues: tuple[str, ...]) -> None:
        self._queues = queues
        self._lanes = {
            (queue, priority): Lane(queue, priority, _LONG_AGO)
            for priority in range(LAST_PRIORITY + 1)
            for queue in queues
        }
        self._turn = 0
        self._floors_end = 0.0

    def in_turn(self) -> list[Lane]:
        """By priority. Within a priority, each queue comes first in turn."""
        now = time.monotonic()
        if now >= self._floors_end:
            self._floors_end = now + _FLOOR_SECONDS
            self.reset_floors()
        self._turn = (self._turn + 1) % len(self._queues)
        order = self._queues[self._turn :] + self._queues[: self._turn]
        return [
            self._lanes[queue, priority] for priority in range(LAST_PRIORITY + 1) for queue in order
        ]

    def raise_floors(self, claimed: Sequence[ClaimedJob]) -> None:
        """After a full claim, everything before its last job of a lane was claimed. Jobs that were
        enqueued together have the same due time, and go by their ids."""
        last = {(job.queue, job.priority): (job.run_at, job.id) for job in claimed}
        for where, floor in last.items():
            if lane := self._lanes.get(where):
                lane.floor, lane.floor_id = max((lane.floor, lane.floor_id), floor)

    def reset_floors(self) -> None:
        for lane in self._lanes.values():
            lane.floor, lane.floor_id = _LONG_AGO, 0
