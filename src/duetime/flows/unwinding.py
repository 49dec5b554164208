"""What unwinds a flow's function, and which of several errors decides how the run goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from duetime.errors import ClaimLost, FlowChanged, TransientError


class Suspended(BaseException):
    """Unwinds a flow's function: it waits for something that has not happened yet."""


class Replayed(BaseException):
    """Unwinds a flow's function that only replays: nothing more is recorded."""


def errors_in(error: BaseException) -> Iterator[BaseException]:
    """The errors of a group, as a task group raises it, and of the groups in it; else the error."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from errors_in(one)
    else:
        yield error


def find_decisive(errors: Sequence[BaseException]) -> BaseException | None:
    """Of errors that branches raised side by side, return the one that says how the run goes on,
    whatever the others are. A branch that waits comes before one that failed: the other may go on
    meanwhile."""
    for kind in (ClaimLost, TransientError, FlowChanged, Suspended):
        for group in errors:
            for error in errors_in(group):
                if isinstance(error, kind):
                    return error
    return None
