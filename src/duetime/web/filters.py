"""Which filters a visitor may use: none by a value that they are not shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from duetime.domain.jobs.arguments import read_arguments
from duetime.errors import InvalidInput

if TYPE_CHECKING:
    from duetime.app import Duetime


def check_shown(app: Duetime, filters: Mapping[str, Any]) -> None:
    """Refuse filters by arguments that are redacted: whether a job matches would reveal its value.

    Without a task in the filters, the argument must be shown in jobs of every task.
    """
    if filters.get("args") is None:
        return
    task = filters.get("task")
    tasks = [task] if task is not None else [None, *app.tasks]
    for condition in read_arguments(filters["args"]):
        if app._redaction.hides(condition.path, condition.value, tasks):
            raise InvalidInput(
                f"The argument {'.'.join(condition.path):.80} is redacted, so jobs cannot be "
                "filtered by it here. `duetime jobs list --arg` can: whoever runs it has access "
                "to the database."
            )
