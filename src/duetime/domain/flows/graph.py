"""A graph of steps: the shape that is stored with each run, and what can start next.

Steps are declared in order, and a step can only depend on steps that were declared before it. So
the order of declaration is a valid order of execution, and there are no cycles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from duetime.domain.flows.flow import StepState
from duetime.domain.jobs.job import DEFAULT_MAX_ATTEMPTS, DEFAULT_PRIORITY, DEFAULT_QUEUE
from duetime.domain.jobs.outcome import Outcome

MAX_STEPS = 1_000
MAX_ITEMS = 100_000
"""The most items of a map, and the distance between the numbers of the items of two maps."""


class GraphKind(StrEnum):
    """What a step of a graph does."""

    STEP = "step"
    MAP = "map"
    SLEEP = "sleep"
    SIGNAL = "signal"
    CHILD = "child"


class Finish(Outcome):
    """Returned by a step of a graph: complete the whole run, with this result.

    Steps that have not started are not run, and those that run are cancelled.
    """

    def __init__(self, result: Any = None) -> None:
        super().__init__(result)
        self.result = result


class JobOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The options of a step's jobs."""

    queue: str = DEFAULT_QUEUE
    priority: int = DEFAULT_PRIORITY
    max_attempts: int = DEFAULT_MAX_ATTEMPTS
    timeout: float | None = None
    """In seconds."""


class Node(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step as it was declared."""

    name: str
    kind: GraphKind = GraphKind.STEP
    after: tuple[str, ...] = ()
    """The steps that it waits for."""
    inputs: tuple[str, ...] = ()
    """Those of `after` whose outputs it takes."""
    without: tuple[str, ...] = ()
    """Those of `inputs` that it can do without: if they are skipped, it runs all the same."""
    conditional: bool = False
    """It has a condition, `when=`, which decides whether it runs or is skipped."""
    optional: bool = False
    """The run goes on if it fails, and so do the steps that wait for it."""
    over: str | None = None
    """Of a map: the step or the argument of the run that has its items."""
    seconds: float | None = None
    """How long a sleep takes, or how long a signal is waited for."""
    default: Any = msgspec.UNSET
    """What a signal yields if it did not arrive in time. Unset: the step fails."""
    flow: str | None = None
    """Of a child: the name of its flow."""
    undo: str | None = None
    """The name of its compensation."""
    job: JobOptions = JobOptions()
    undo_job: JobOptions = JobOptions()


class Shape(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, dict=True):
    """A graph as it was declared when a run started. It is stored with the run."""

    graph: str
    nodes: tuple[Node, ...] = ()
    """In the order of their declaration, in which they can also be executed."""
    timeout: float | None = None
    """In seconds, for the whole run."""

    def __getitem__(self, name: str) -> Node:
        return self.nodes[self._places[name]]

    def __contains__(self, name: object) -> bool:
        return name in self._places

    @property
    def end(self) -> int:
        """The number of the row that stands for the end of the run."""
        return len(self.nodes) + 1

    def seq(self, name: str) -> int:
        """The number of a step, from 1."""
        return self._places[name] + 1

    def node(self, seq: int) -> Node | None:
        """The step with this number; of an item's number, its map. None: it is no step's."""
        place = (seq // MAX_ITEMS if seq > MAX_ITEMS else seq) - 1
        return self.nodes[place] if 0 <= place < len(self.nodes) else None

    def first_item(self, name: str) -> int:
        """The number of the first item of a map. Those of the others follow."""
        return self.seq(name) * MAX_ITEMS + 1

    def next(self, name: str) -> tuple[str, ...]:
        """The steps that wait for this one."""
        return self._next[name]

    def skipped_with(self, node: Node) -> tuple[str, ...]:
        """The steps that may be skipped, and with which this one is skipped then."""
        return tuple(
            name for name in node.after if name in self._skippable and self._needs(node, name)
        )

    def _needs(self, node: Node, name: str) -> bool:
        """Whether a step cannot run if this other one was skipped."""
        return not self[name].optional and name not in node.without

    @cached_property
    def _skippable(self) -> frozenset[str]:
        found: set[str] = set()
        for node in self.nodes:
            if node.conditional or any(
                name in found and self._needs(node, name) for name in node.after
            ):
                found.add(node.name)
        return frozenset(found)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {node.name: place for place, node in enumerate(self.nodes)}

    @cached_property
    def _next(self) -> dict[str, tuple[str, ...]]:
        following: dict[str, list[str]] = {node.name: [] for node in self.nodes}
        for node in self.nodes:
            for name in node.after:
                following[name].append(node.name)
        return {name: tuple(names) for name, names in following.items()}


def is_item(seq: int) -> bool:
    """Whether this is the number of an item of a map."""
    return seq > MAX_ITEMS


def is_done(node: Node, state: StepState) -> bool:
    """Whether steps that wait for this one wait no longer."""
    return (
        state is StepState.COMPLETED
        or state is StepState.SKIPPED
        or (state is StepState.FAILED and node.optional)
    )


def is_skipped(shape: Shape, node: Node, states: Mapping[str, StepState]) -> bool:
    """Whether a step is skipped because another one was, which it cannot do without."""
    return any(states[name] is StepState.SKIPPED for name in shape.skipped_with(node))


class Progress(NamedTuple):
    """Where a run stands."""

    ready: tuple[Node, ...]
    """The steps that can start."""
    skipped: tuple[Node, ...]
    """The steps that are skipped because they depend on skipped steps."""
    failed: Node | None
    """A step without which the run cannot succeed."""
    done: bool
    """Whether nothing is left to do."""


def progress(shape: Shape, states: Mapping[str, StepState]) -> Progress:
    """Return what can start, given the state of every step."""
    after = dict(states)
    ready: list[Node] = []
    skipped: list[Node] = []
    for node in shape.nodes:
        if after[node.name] is StepState.PENDING and not count_pending(shape, node, after):
            if is_skipped(shape, node, after):
                after[node.name] = StepState.SKIPPED
                skipped.append(node)
            else:
                ready.append(node)
    failed = [
        node for node in shape.nodes if after[node.name] is StepState.FAILED and not node.optional
    ]
    return Progress(
        tuple(ready),
        tuple(skipped),
        failed[0] if failed else None,
        all(is_done(node, after[node.name]) for node in shape.nodes),
    )


def count_pending(shape: Shape, node: Node, states: Mapping[str, StepState]) -> int:
    """How many steps this one still waits for."""
    return sum(not is_done(shape[name], states[name]) for name in node.after)


def steps_to_repeat(
    shape: Shape, states: Mapping[str, StepState], *, from_steps: Collection[str] = ()
) -> frozenset[str]:
    """The steps that run again when a run is retried: all that are not done, `from_steps`, and
    every step that depends on one of these."""
    repeat: set[str] = set()
    for node in shape.nodes:
        if (
            node.name in from_steps
            or not is_done(node, states[node.name])
            or any(name in repeat for name in node.after)
        ):
            repeat.add(node.name)
    return frozenset(repeat)


def maps_to_resume(
    shape: Shape, repeated: Collection[str], *, from_steps: Collection[str] = ()
) -> frozenset[str]:
    """Of the steps that run again, the maps whose completed items are kept: what they map over does
    not run again."""
    return frozenset(
        node.name
        for node in shape.nodes
        if node.kind is GraphKind.MAP
        and node.name in repeated
        and node.name not in from_steps
        and not any(name in repeated for name in node.after)
    )


def leaves(shape: Shape) -> tuple[Node, ...]:
    """The steps that no other step waits for. Their outputs are the result of a run."""
    return tuple(node for node in shape.nodes if not shape.next(node.name))


def compensations(shape: Shape, completed: Iterable[tuple[str, Any]]) -> tuple[Node, ...]:
    """The completed steps that have a compensation, in the order of completion.

    `completed`: names with what they are ordered by. Compensations run in reverse of this.
    """
    times = {name: (time, shape.seq(name)) for name, time in completed if shape[name].undo}
    return tuple(shape[name] for name in sorted(times, key=times.__getitem__))
