"""Which calls of a run that has failed are made again when it is retried."""

from __future__ import annotations

from duetime.errors import SignalTimeout, StepFailed
from duetime.flows.branches import Branch, CallNumbers, Progress


class FailedCalls:
    """The calls that raised `StepFailed` or `SignalTimeout` in this activation.

    A retry of the run forgets those whose errors ended the run, and keeps those whose errors the
    function has handled.
    """

    def __init__(self, numbers: CallNumbers) -> None:
        self._numbers = numbers
        self._failed: dict[int, Progress] = {}
        """How far the function had got when each failed."""

    def add(self, seq: int, branch: Branch) -> None:
        self._failed[seq] = branch.progress()

    def to_repeat(self, error: BaseException) -> list[int]:
        """The calls whose errors ended the run, and those that the function made because of them,
        such as one that notifies somebody before the error is raised again.

        After any other error that it handled, the function has made another call.
        """
        repeated: set[int] = set()
        for last in _calls_that_raised(error) or {None}:
            until: Progress = {} if last is None else self._failed.get(last, {})
            for seq, progress in self._failed.items():
                if seq == last or all(
                    reached == until.get(branch, (branch.calls, len(branch.gathered)))
                    for branch, reached in progress.items()
                ):
                    repeated.add(seq)
                    repeated |= self._numbers.since(progress)
        return sorted(repeated)


def _calls_that_raised(
    error: BaseException | None, seen: set[int] | None = None
) -> set[int | None]:
    """The calls whose error this is, or was caused by; of a group, each of its errors."""
    # An error that is raised from its own group contains itself.
    seen = set() if seen is None else seen
    while error is not None and id(error) not in seen:
        if isinstance(error, StepFailed | SignalTimeout):
            return {error.seq}
        seen.add(id(error))
        if isinstance(error, BaseExceptionGroup) and (
            found := {seq for one in error.exceptions for seq in _calls_that_raised(one, seen)}
        ):
            return found
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context
    return set()
