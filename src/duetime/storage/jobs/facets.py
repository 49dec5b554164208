"""How many jobs match a filter, by state, queue and task, and how they failed, for every backend.

At most `MOST_COUNTED` jobs of each state are read, or fewer if the filter says so, however many
there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.count import Count, Precision
from duetime.domain.jobs.facets import (
    FAILED,
    MOST_COUNTED,
    MOST_GROUPED,
    ErrorGroup,
    JobFacets,
    SimilarErrors,
    group_errors,
)
from duetime.domain.jobs.job import JobFilter, JobState
from duetime.domain.reasons import describe_error
from duetime.storage.jobs.find import Make, Search
from duetime.storage.store import Row, Statement

MOST_GROUPS = 200
"""Of errors that differ by more than digits: the most frequent ones are described."""
_PARTS = 5
_LEAST_PART = 200
"""Of a state with too many jobs to count, a fifth of those that are counted, but at least so many,
are read to see their queues and tasks."""
_WAITING = (JobState.PENDING, JobState.RETRYING, JobState.PARKED)


def count_jobs(which: JobFilter, make: Make) -> Generator[Statement, list[Row], JobFacets]:
    """Return the facets. Run it in one snapshot."""
    states: dict[JobState, Count] = {}
    queues: Counter[str] = Counter()
    tasks: Counter[str] = Counter()
    is_complete = True
    due_only = bool(which.due_since or which.due_before)
    for state in JobState:
        if due_only and state not in _WAITING:
            states[state] = Count(0)
            continue
        ids, has_more = yield from _candidates(which, (state,), make, MOST_COUNTED)
        precision: Precision = "at_least" if has_more else "exact"
        check = _check(which, state)
        is_shown = state in (which.states or JobState)
        if not is_shown and not any(check.values()):
            states[state] = Count(len(ids), precision)
            continue
        counted = None
        if has_more and not any(check.values()):
            # They are more than that anyway: a part shows which queues and tasks there are.
            counted, ids = len(ids), ids[: max(_LEAST_PART, len(ids) // _PARTS)]
        rows: list[Row] = []
        if ids:
            rows = yield make("job_facets", {"ids": ids} | check)
        states[state] = Count(counted or sum(row[2] for row in rows), precision)
        if is_shown:
            is_complete = is_complete and not has_more
            for queue, task, number in rows:
                queues[queue] += number
                tasks[task] += number

    def counts(numbers: Counter[str]) -> dict[str, Count]:
        known: Precision = "exact" if is_complete else "at_least"
        return {name: Count(number, known) for name, number in numbers.most_common()}

    return JobFacets(states=states, queues=counts(queues), tasks=counts(tasks))


def _check(which: JobFilter, state: JobState) -> dict[str, Any]:
    """How to make sure that candidates are in the state. Most sources have no others."""
    if which.key or which.due_since or which.due_before or state is JobState.RUNNING:
        return {"state": state.value, "outcomes": None}
    return {"state": None, "outcomes": [state.value] if state in FAILED else None}


def find_errors(
    which: JobFilter, make: Make, moment: Callable[[Any], datetime]
) -> Generator[Statement, list[Row], list[ErrorGroup]]:
    """Return how jobs in the filter's states, all of them finished, failed."""
    ids, has_more = yield from _candidates(which, which.states, make, MOST_GROUPED)
    if not ids:
        return []
    outcomes = [state.value for state in which.states]
    rows = yield make("error_groups", {"ids": ids, "outcomes": outcomes})
    frequent = sorted(rows, key=lambda row: -row[2])[:MOST_GROUPS]
    found = [
        SimilarErrors(task, code, count, moment(first), moment(last), example)
        for task, code, count, first, last, example in frequent
    ]
    errors = yield make("errors_of", {"ids": [each.example for each in found]})
    described = {job_id: (error, facts) for job_id, error, facts in errors}
    for each in found:
        error, facts = described[each.example]
        known = None if facts is None else msgspec.json.decode(facts)
        each.error = describe_error(each.error_code, known, error)
    return group_errors(found, is_complete=not has_more)


def _candidates(
    which: JobFilter, states: Sequence[JobState], make: Make, most: int
) -> Generator[Statement, list[Row], tuple[list[int], bool]]:
    """Return the newest jobs that may be in these states and match, and whether there are more."""
    most = min(most, which.examine or most)
    search = Search(msgspec.structs.replace(which, states=tuple(states), examine=most), make)
    search.window = most
    yield from search.prepare()
    ids = yield from search.next_ids(most)
    return ids, not search.is_over
