"""Which jobs match a filter, newest first, for every backend.

The table that holds a job is its state, so the ids come from the tables and indexes that hold jobs
in the wanted states. Jobs in other states are not read, however many there are.

No index serves the other conditions, such as a task or an argument. They are checked on a window of
rows, then on a larger one below it; a filter says how many rows may be examined in all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.jobs.job import JobFilter, JobState
from duetime.storage.store import Row, Statement

_NEWEST = 2**63 - 1
_LEAST_PAGE = 100
_FIRST_WINDOW = 200
_GROWTH = 8
_LAST_WINDOW = 16_000
_MOST_DUE = 10_000
"""Jobs that are due in a given span are found by their time if there are not more."""
_DISORDER = timedelta(seconds=10)
"""Ids follow the times of creation but for this: jobs are enqueued side by side and in bulk."""
_SOURCES: dict[JobState, str] = {
    JobState.PENDING: "pending",
    JobState.RETRYING: "retrying",
    JobState.PARKED: "parked",
    JobState.RUNNING: "running",
    JobState.COMPLETED: "completed",
    JobState.DEAD: "troubled",
    JobState.CANCELLED: "troubled",
    JobState.SUPERSEDED: "troubled",
    JobState.EXPIRED: "troubled",
}
_decode_ids = msgspec.json.Decoder(list[int]).decode
_WAITING = (JobState.PENDING, JobState.RETRYING, JobState.PARKED)
_WITH_ERROR = tuple(
    state for state in JobState if state not in (JobState.PENDING, JobState.COMPLETED)
)

Make = Callable[[str, dict[str, Any]], Statement]
"""Makes a backend's statement of its name and parameters."""
Found = tuple[list[Row], int | None, int]
"""The rows; the id below which the search goes on, if it stopped early; how many were examined."""


def find_jobs(which: JobFilter, make: Make) -> Generator[Statement, list[Row], Found]:
    """Return the rows of the jobs.

    Run it in one snapshot: a job that changes its state between two statements could be missed.
    """
    search = Search(which, make)
    yield from search.prepare()
    found: list[Row] = []
    while len(found) < which.limit and not search.is_over:
        if search.examined and which.examine is not None and search.examined >= which.examine:
            return found, search.before, search.examined
        ids = yield from search.next_ids(which.limit - len(found))
        if ids:
            given = {
                "ids": ids,
                "states": [state.value for state in search.states] or None,
                "ended_by": which.ended_by,
            }
            found += yield make("given_jobs", given)
    return found[: which.limit], None, search.examined


class Search:
    """Goes down the ids, window by window."""

    def __init__(self, which: JobFilter, make: Make) -> None:
        self._which = which
        self._make = make
        self.states = _states(which)
        self.before = _NEWEST if which.before_id is None else which.before_id
        self.is_over = False
        self.examined = 0
        self._lowest = 0
        self.window = _FIRST_WINDOW
        """How many rows of each source are examined next."""
        self._due: list[int] | None = None
        """The jobs that are due in the given span, unless they are many."""

    def prepare(self) -> Generator[Statement, list[Row], None]:
        """Find the ids between which the search takes place."""
        which = self._which
        if which.created_since is not None:
            self._lowest = yield from self._first_created(which.created_since - _DISORDER)
        if which.created_before is not None:
            end = yield from self._first_created(which.created_before + _DISORDER)
            self.before = min(self.before, end)
        if which.due_since or which.due_before:
            span = {
                "due_since": which.due_since,
                "due_before": which.due_before,
                "queue": which.queue,
                "most": _MOST_DUE + 1,
            }
            rows = yield self._make("due_between_ids", span)
            if len(rows) <= _MOST_DUE:
                self._due = [row[0] for row in rows]

    def next_ids(self, page: int) -> Generator[Statement, list[Row], list[int]]:
        """Return candidates below `before`, newest first, and go on below them."""
        page = max(page, _LEAST_PAGE)
        ids: set[int] = set()
        floor: int | None = None
        for source in self._sources():
            [(text, below, examined)] = yield self._make(
                "candidate_ids", self._parameters(source, page)
            )
            matching = _decode_ids(text)
            self.examined += examined
            ids.update(matching)
            if len(matching) == page:
                below = min(matching)
            if below is not None:
                floor = below if floor is None else max(floor, below)
        self.window = min(self.window * _GROWTH, _LAST_WINDOW)
        self.is_over = floor is None
        self.before = self.before if floor is None else floor
        return sorted((i for i in ids if floor is None or i >= floor), reverse=True)

    def _sources(self) -> list[str]:
        if self._which.ids is not None:
            return ["given"]
        if self._which.key is not None:
            return ["keyed"]
        if not self.states:
            return ["any"]
        sources = [_SOURCES[state] for state in self.states]
        if self._due is not None:
            sources = ["due" if source in ("pending", "retrying") else source for source in sources]
        return list(dict.fromkeys(sources))

    def _parameters(self, source: str, page: int) -> dict[str, Any]:
        which = self._which
        window = self.window
        if which.examine is not None:
            window = min(window, max(which.examine - self.examined, _LEAST_PAGE))
        window = _NEWEST if source in ("keyed", "given", "due") else max(window, page)
        ids = self._due if source == "due" else which.ids
        about_job = (
            which.queue, which.task, which.but_tasks, which.key, which.created_since,
            which.created_before, which.args or None,
        )  # fmt: skip
        return {
            "source": source,
            "before": self.before,
            "lowest": self._lowest,
            "window": window,
            "page": page,
            "ids": None if ids is None else list(ids),
            "states": [state.value for state in self.states],
            "plain": not any(condition is not None for condition in about_job),
            "queue": which.queue,
            "task": which.task,
            "but_tasks": which.but_tasks,
            "key": which.key,
            "error_code": which.error_code,
            "created_since": which.created_since,
            "created_before": which.created_before,
            "due_since": which.due_since,
            "due_before": which.due_before,
            "args": which.args,
        }

    def _first_created(self, moment: datetime) -> Generator[Statement, list[Row], int]:
        """Return the first id of the jobs that were created at that time or later."""
        [(low, high)] = yield self._make("job_range", {})
        if low is None:
            return 0
        high += 1
        while low < high:
            middle = (low + high) // 2
            [(found, is_later)] = yield self._make("job_near", {"id": middle, "moment": moment})
            if is_later:
                high = middle
            else:
                low = found + 1
        return int(low)


def _states(which: JobFilter) -> tuple[JobState, ...]:
    """The states that can match. All of them: none."""
    states = which.states
    if which.due_since or which.due_before:
        return tuple(state for state in states or _WAITING if state in _WAITING)
    if which.error_code and not states and which.key is None and which.ids is None:
        return _WITH_ERROR
    return states
