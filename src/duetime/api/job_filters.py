"""Which jobs: the filters that `app.jobs.list` and the verbs for many jobs take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, TypedDict

from duetime.domain.checks import check_moment, check_sought
from duetime.domain.jobs.arguments import Arguments, read_arguments
from duetime.domain.jobs.job import JobFilter, JobState, JobStateLike
from duetime.errors import InvalidInput

_WAITING = (JobState.PENDING, JobState.RETRYING, JobState.PARKED)


class JobFilters(TypedDict, total=False):
    """Every filter that is given must match."""

    state: JobStateLike | Sequence[JobStateLike]
    queue: str | None
    task: str | None
    key: str | None
    error_code: str | None
    """That of the last attempt. Among jobs that have failed, unless `state` says otherwise."""
    args: Arguments | None
    """Values of arguments, each by its path: `{"order.id": 7}`, or as text, `"order.id=7"`."""
    created_since: datetime | None
    created_before: datetime | None
    due_since: datetime | None
    """Only of jobs that wait, as `due_before`."""
    due_before: datetime | None


def make_filter(
    *,
    state: JobStateLike | Sequence[JobStateLike] = (),
    queue: str | None = None,
    task: str | None = None,
    key: str | None = None,
    error_code: str | None = None,
    args: Arguments | None = None,
    created_since: datetime | None = None,
    created_before: datetime | None = None,
    due_since: datetime | None = None,
    due_before: datetime | None = None,
    **further: Any,
) -> JobFilter:
    """Return the filter, checked; raise `InvalidInput`. `further`: fields that no caller gives."""
    states = read_states(state)
    for name, value in (("queue", queue), ("task", task), ("key", key)):
        if value is not None:
            check_sought(value, what=name)
    if error_code is not None:
        check_sought(error_code, what="error code")
    for name, moment in (
        ("created_since", created_since),
        ("created_before", created_before),
        ("due_since", due_since),
        ("due_before", due_before),
    ):
        if moment is not None:
            check_moment(moment, name=name)
    if (due_since or due_before) and (bad := [one for one in states if one not in _WAITING]):
        raise InvalidInput(
            f"Jobs that are {bad[0]} are not due at a time. Use due_since= and due_before= with "
            "the states pending, retrying and parked, or without a state."
        )
    return JobFilter(
        states=states,
        queue=queue,
        task=task,
        key=key,
        error_code=error_code,
        args=() if args is None else read_arguments(args),
        created_since=created_since,
        created_before=created_before,
        due_since=due_since,
        due_before=due_before,
        **further,
    )


def list_states(given: Any) -> list[Any]:
    """One state or several, as a list that is yet to be checked."""
    is_one = isinstance(given, str) or not isinstance(given, Iterable)
    return [given] if is_one else list(given)


def read_states(given: Any) -> tuple[JobState, ...]:
    """Return the states that `state=` names; raise `InvalidInput`."""
    items = list_states(given)
    try:
        return tuple(dict.fromkeys(JobState(item) for item in items))
    except ValueError:
        known = ", ".join(JobState)
        raise InvalidInput(f"{items!r} is not a job state. Use one of: {known}.") from None
