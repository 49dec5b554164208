"""Which jobs match a filter, newest first, for every backend.

The table that holds a job is its state, so the ids come from the tables and indexes that hold jobs
in the wanted states. Jobs in other states are not read, however many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from duetime.domain.jobs.job import JobFilter, JobState
from duetime.storage.store import Row, Statement

_NEWEST = 2**63 - 1
_LEAST_PAGE = 100
_SOURCES: dict[JobState, str] = {
    JobState.PENDING: "waiting_ids",
    JobState.RETRYING: "waiting_ids",
    JobState.PARKED: "parked_ids",
    JobState.RUNNING: "running_ids",
    JobState.COMPLETED: "completed_ids",
    JobState.DEAD: "troubled_ids",
    JobState.CANCELLED: "troubled_ids",
    JobState.SUPERSEDED: "troubled_ids",
    JobState.EXPIRED: "troubled_ids",
}

Make = Callable[[str, dict[str, Any]], Statement]
"""Makes a backend's statement of its name and parameters."""


def find_jobs(which: JobFilter, make: Make) -> Generator[Statement, list[Row], list[Row]]:
    """Return the rows of the jobs.

    Run it in one snapshot: a job that changes its state between two statements could be missed.
    """
    found: list[Row] = []
    before = _NEWEST if which.before_id is None else which.before_id
    while len(found) < which.limit:
        ids, floor = yield from _next_ids(which, before, make)
        if ids:
            found += yield make(
                "given_jobs",
                {
                    "ids": ids,
                    "states": [state.value for state in which.states] or None,
                    "queue": which.queue,
                    "task": which.task,
                    "but_task": which.but_task,
                    "key": which.key,
                },
            )
        if floor is None:
            break
        before = floor
    return found[: which.limit]


def _next_ids(
    which: JobFilter, before: int, make: Make
) -> Generator[Statement, list[Row], tuple[list[int], int | None]]:
    """Return candidates below `before`, newest first, and the id down to which they are complete.

    That is None if there are no more.
    """
    if which.ids is not None:
        return sorted((i for i in which.ids if i < before), reverse=True), None
    page = max(which.limit, _LEAST_PAGE)
    ids: set[int] = set()
    floor: int | None = None
    for source in _sources(which):
        rows = yield make(
            source,
            {
                "before": before,
                "page": page,
                "queue": which.queue,
                "task": which.task,
                "key": which.key,
                "states": [state.value for state in which.states],
            },
        )
        ids.update(row[0] for row in rows)
        if len(rows) == page:
            floor = max(floor or 0, rows[-1][0])
    return sorted((i for i in ids if i >= (floor or 0)), reverse=True), floor


def _sources(which: JobFilter) -> list[str]:
    if which.key is not None:
        return ["keyed_ids"]
    if not which.states:
        return ["any_ids"]
    return list(dict.fromkeys(_SOURCES[state] for state in which.states))
