"""The branches of a flow's function, and the numbers under which their calls are recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from duetime.domain.flows.flow import BRANCH_CALLS, StepRecord

_IN_TASK = "*"
"""Ends the places of calls in a branch that was not made by `gather`."""


class Branch:
    """An asyncio task that makes calls of a flow, one after the other.

    Which branch is ahead differs from one activation to the next, so each counts its own calls.
    """

    __slots__ = (
        "branches", "calls", "compensations", "gathered", "main", "mark", "parent", "path", "task",
    )  # fmt: skip

    def __init__(
        self, path: str, task: asyncio.Task[Any] | None, parent: Branch | None = None
    ) -> None:
        self.main: Branch = self if parent is None else parent.main
        """The branch of the function itself."""
        self.parent = parent
        self.path = path
        """Empty for the function itself; else a number for each level: `2`, `2.1`."""
        self.task = task
        self.mark = "" if parent is None else _IN_TASK
        self.calls = 0
        self.compensations = 0
        self.branches = 0
        self.gathered: list[str] = []
        """The branches that this one has made by `gather`, by their paths."""

    @property
    def has_tasks(self) -> bool:
        """Whether it may be the body of a task group: it is the function itself, or has made tasks
        by other means than `gather`."""
        return self.parent is None or self.branches > len(self.gathered)

    def fork(self) -> Branch:
        self.branches += 1
        return Branch(f"{self.path}.{self.branches}".lstrip("."), None, self)

    def gather(self) -> Branch:
        branch = self.fork()
        branch.mark = ""
        self.gathered.append(branch.path)
        return branch

    def progress(self) -> Progress:
        """How far this branch has got, and those that wait for it."""
        progress: Progress = {}
        branch: Branch | None = self
        while branch is not None:
            progress[branch] = branch.calls, len(branch.gathered)
            branch = branch.parent
        return progress


Progress = dict[Branch, tuple[int, int]]
"""How many calls branches have made, and how many branches by `gather`."""

current_branch: ContextVar[Branch | None] = ContextVar("duetime_flow_branch", default=None)


class CallNumbers:
    """The numbers of a run's calls.

    Calls of the function itself are numbered as it makes them. Which branch makes its next call
    first differs from one activation to the next. So a call in a branch gets its number when it is
    first made, and its place is recorded with it: `2.1:3` is the third call of the branch `2.1`.
    """

    def __init__(self, records: Mapping[int, StepRecord]) -> None:
        self._records = records
        self._place_of = {
            seq: record.place for seq, record in records.items() if record.place is not None
        }
        """Where calls in branches are made, as it is recorded."""
        self._places = {place.removesuffix(_IN_TASK): seq for seq, place in self._place_of.items()}
        """The numbers of calls in branches, by where they are made."""
        self._last_in_branches = max([BRANCH_CALLS, *self._place_of])
        self._last_compensation = min([0, *records])

    def of_call(self, branch: Branch, call: int) -> int:
        """The number under which this call of a branch is recorded, or will be."""
        if branch.parent is None:
            return call
        place = f"{branch.path}:{call}"
        seq = self._places.get(place)
        if seq is None:
            self._last_in_branches += 1
            seq = self._places[place] = self._last_in_branches
            self._place_of[seq] = place + branch.mark
        return seq

    def of_compensation(self, branch: Branch, compensation: int) -> int:
        """The number of this compensation of a branch. It is negative, the last the lowest."""
        place = f"{branch.path}!{compensation}"
        seq = self._places.get(place)
        if seq is None:
            self._last_compensation -= 1
            seq = self._places[place] = self._last_compensation
            self._place_of[seq] = place + branch.mark
        return seq

    def place_of(self, seq: int) -> str | None:
        """Where the call with this number is made, if that has to be recorded."""
        return self._place_of.get(seq)

    def are_in_tasks(self) -> bool:
        """Whether a recorded call was made in a task that was not made by `gather`."""
        return any(place.endswith(_IN_TASK) for place in self._place_of.values())

    def has_passed(self, branch: Branch) -> bool:
        """Whether anything is recorded that this branch does after its last call: a call, one in a
        branch that it makes, or one of a branch that waits for it."""
        here: Branch | None = branch
        while here is not None:
            inner = f"{here.path}.".lstrip(".")
            for seq in self._records:
                place = self._place_of.get(seq, f":{seq}").removesuffix(_IN_TASK)
                path, _, call = place.partition(":")
                if seq <= 0 or not f"{path}.".startswith(inner):
                    continue
                made = path.removeprefix(inner).partition(".")[0]
                if int(call) > here.calls if path == here.path else int(made) > here.branches:
                    return True
            above = here.parent
            # Any other task goes on while this one runs.
            here = above if above is not None and here.path in above.gathered else None
        return False

    def since(self, progress: Progress) -> set[int]:
        """The calls that these branches have made since this progress, and the calls in the
        branches that they have made by `gather` since."""
        places = [
            f"{branch.path}:{call}"
            for branch, (calls, _) in progress.items()
            for call in range(calls + 1, branch.calls + 1)
        ]
        branches = tuple(
            end
            for branch, (_, gathered) in progress.items()
            for path in branch.gathered[gathered:]
            for end in (f"{path}:", f"{path}.")
        )
        places += [place for place in self._places if branches and place.startswith(branches)]
        calls = [int(place[1:]) if place[0] == ":" else self._places.get(place) for place in places]
        return {seq for seq in calls if seq is not None and seq > 0}
