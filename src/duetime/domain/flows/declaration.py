"""How a graph is declared: what each step takes and returns, checked as it is added."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from enum import Enum
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NamedTuple,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)
from uuid import UUID

import msgspec

from duetime.domain.checks import check_name
from duetime.domain.flows.graph import MAX_STEPS, GraphKind, JobOptions, Node, Shape
from duetime.domain.jobs.outcome import Outcome
from duetime.errors import InvalidInput

_UNKNOWN = frozenset({"null", "boolean", "number", "string", "array", "object"})


class Parameter(NamedTuple):
    """A parameter of a step's function."""

    name: str
    hint: Any = Any
    required: bool = True

    @property
    def takes_none(self) -> bool:
        """Whether the function says that it can do without a value."""
        return not self.required or _accepts_none(self.hint)


class Argument(NamedTuple):
    """An argument of a run, and the step that takes it first."""

    step: str
    parameter: Parameter


class Declaration:
    """The steps of a graph. Every step is checked when it is added; a mistake is `InvalidInput`."""

    def __init__(self, graph: str, *, timeout: float | None = None) -> None:
        self.graph = check_name(graph, what="graph's name")
        self._timeout = timeout
        self._nodes: dict[str, Node] = {}
        self._returns: dict[str, Any] = {}
        self._compensations: dict[str, str] = {}
        self.arguments: dict[str, Argument] = {}

    @property
    def shape(self) -> Shape:
        return Shape(graph=self.graph, nodes=tuple(self._nodes.values()), timeout=self._timeout)

    def add(
        self,
        name: str,
        kind: GraphKind = GraphKind.STEP,
        *,
        after: Iterable[str] = (),
        parameters: Sequence[Parameter] = (),
        returns: Any = Any,
        when: Callable[..., Any] | None = None,
        optional: bool = False,
        over: str | None = None,
        seconds: float | None = None,
        default: Any = msgspec.UNSET,
        flow: str | None = None,
        job: JobOptions | None = None,
    ) -> Node:
        """Add a step. `parameters` that have the name of a step take its output; the others are
        arguments of the run."""
        self._check_new(name)
        waits_for = list(after)
        for other in waits_for:
            self._check_known(name, other)
        condition = [] if when is None else self._read_condition(name, when)
        if over is not None:
            self._check_over(name, over)
        taken = [*parameters, *condition]
        if over is not None and over not in self._nodes:
            taken.append(Parameter(over, list[Any]))
        inputs = [one for one in taken if one.name in self._nodes]
        for parameter in parameters:
            if parameter.name in self._nodes:
                self._check_input(name, parameter)
        for parameter in taken:
            if parameter.name not in self._nodes:
                self._take_argument(name, parameter)
        if over in self._nodes:
            waits_for.append(over)
        waits_for += [parameter.name for parameter in inputs]
        needed = {one.name for one in inputs if not one.takes_none}
        node = Node(
            name=name,
            kind=kind,
            after=_unique(waits_for),
            inputs=_unique(parameter.name for parameter in inputs),
            without=_unique(one.name for one in inputs if one.name not in needed),
            conditional=when is not None,
            optional=optional,
            over=over,
            seconds=seconds,
            default=default,
            flow=flow,
            job=job or JobOptions(),
        )
        self._nodes[name] = node
        self._returns[name] = list[Any] if kind is GraphKind.MAP else returns
        return node

    def compensate(
        self, step: str, undo: str, *, parameters: Sequence[Parameter], job: JobOptions
    ) -> Node:
        """Declare what undoes a step."""
        node = self._nodes.get(step)
        if node is None:
            raise InvalidInput(
                f"Graph {self.graph!r} has no step {step!r}, so {undo!r} cannot undo it. "
                f"{self._known_steps()}"
            )
        if node.undo is not None:
            raise InvalidInput(
                f"Step {step!r} of graph {self.graph!r} already has the compensation "
                f"{node.undo!r}. Undo everything in one function."
            )
        if node.kind not in (GraphKind.STEP, GraphKind.MAP, GraphKind.CHILD):
            raise InvalidInput(
                f"Step {step!r} of graph {self.graph!r} is a {node.kind}, which has no effects "
                "that could be undone."
            )
        self._check_new(undo)
        done_before = self._ancestors(step) | {step}
        for parameter in parameters:
            if parameter.name not in self._nodes:
                self._take_argument(undo, parameter)
                continue
            self._check_input(undo, parameter)
            if parameter.name not in done_before and not parameter.takes_none:
                raise InvalidInput(
                    f"Graph {self.graph!r}: {undo!r} takes the output of {parameter.name!r}, which "
                    f"may not have run when {step!r} is undone. Annotate it as "
                    f"`{parameter.name}: … | None`."
                )
        node = self._nodes[step] = msgspec.structs.replace(node, undo=undo, undo_job=job)
        self._compensations[undo] = step
        return node

    # Checks

    def _check_new(self, name: str) -> None:
        check_name(name, what="step's name")
        if not name.isidentifier():
            raise InvalidInput(
                f"{name!r} cannot be the name of a step of graph {self.graph!r}: other steps take "
                "its output by a parameter of that name. Use letters, digits and underscores."
            )
        if name in self._nodes or name in self._compensations:
            raise InvalidInput(
                f"Graph {self.graph!r} already has a step {name!r}. Give each step its own name."
            )
        if name in self.arguments:
            raise InvalidInput(
                f"Graph {self.graph!r}: step {self.arguments[name].step!r} takes {name!r} as an "
                f"argument of the run, so a step that is declared later cannot have that name. "
                f"Declare {name!r} before {self.arguments[name].step!r}, or rename one of them."
            )
        if len(self._nodes) >= MAX_STEPS:
            raise InvalidInput(
                f"Graph {self.graph!r} has more than {MAX_STEPS:,} steps. Use a map for work that "
                "repeats, or a child flow."
            )

    def _check_known(self, name: str, other: str) -> None:
        if other not in self._nodes:
            raise InvalidInput(
                f"Graph {self.graph!r}: step {name!r} is declared after={other!r}, but no step of "
                f"that name has been declared. {self._known_steps()} A step can only wait for "
                "steps that are declared before it."
            )

    def _known_steps(self) -> str:
        known = ", ".join(self._nodes)
        return f"So far there are: {known}." if known else "So far there are none."

    def _check_over(self, name: str, over: str) -> None:
        if over in self._nodes and "array" not in _json_kinds(self._returns[over]):
            raise InvalidInput(
                f"Graph {self.graph!r}: the map {name!r} goes over the output of {over!r}, which "
                f"is annotated to return {_show(self._returns[over])}, not a list."
            )

    def _check_input(self, name: str, parameter: Parameter) -> None:
        source = self._nodes[parameter.name]
        if source.optional and not parameter.takes_none:
            raise InvalidInput(
                f"Graph {self.graph!r}: {name!r} takes the output of {parameter.name!r}, which is "
                f"optional: if it fails, there is none. Annotate it as `{parameter.name}: "
                f"{_show(parameter.hint)} | None`."
            )
        returned = self._returns[parameter.name]
        if not _json_kinds(returned) & _json_kinds(parameter.hint):
            raise InvalidInput(
                f"Graph {self.graph!r}: {name!r} takes {parameter.name!r} as "
                f"{_show(parameter.hint)}, but step {parameter.name!r} is annotated to return "
                f"{_show(returned)}. Correct one of the annotations."
            )

    def _take_argument(self, name: str, parameter: Parameter) -> None:
        known = self.arguments.get(parameter.name)
        if known is None:
            self.arguments[parameter.name] = Argument(name, parameter)
            return
        first = known.parameter
        if not _json_kinds(first.hint) & _json_kinds(parameter.hint):
            raise InvalidInput(
                f"Graph {self.graph!r}: {parameter.name!r} is no step, so it is an argument of the "
                f"run. Step {known.step!r} takes it as {_show(first.hint)}, and {name!r} as "
                f"{_show(parameter.hint)}. Use the same type in both."
            )
        if parameter.required and not first.required:
            self.arguments[parameter.name] = Argument(known.step, first._replace(required=True))

    def _read_condition(self, name: str, when: Callable[..., Any]) -> list[Parameter]:
        if not callable(when):
            raise InvalidInput(
                f"Graph {self.graph!r}: when= of step {name!r} must be a function, such as "
                f"`when=lambda total: total > 0`, got {when!r:.60}."
            )
        if inspect.iscoroutinefunction(when):
            raise InvalidInput(
                f"Graph {self.graph!r}: when= of step {name!r} must be a plain function, not a "
                "coroutine function. Read what it needs in a step, and decide on its output."
            )
        return [
            Parameter(one.name, Any, one.default is one.empty)
            for one in inspect.signature(when).parameters.values()
        ]

    def _ancestors(self, name: str) -> set[str]:
        found: set[str] = set()
        open_names = [name]
        while open_names:
            for other in self._nodes[open_names.pop()].after:
                if other not in found:
                    found.add(other)
                    open_names.append(other)
        return found


def read_function(
    function: Callable[..., Any], *, context_type: type[Any]
) -> tuple[list[Parameter], Any]:
    """Return the parameters of a function, without its context, and what it returns."""
    hints = get_type_hints(function, include_extras=True)
    parameters = [
        Parameter(one.name, hints.get(one.name, Any), one.default is one.empty)
        for one in inspect.signature(function).parameters.values()
        if hints.get(one.name) is not context_type
    ]
    return parameters, hints.get("return", Any)


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _accepts_none(hint: Any) -> bool:
    return hint is None or hint is NoneType or NoneType in _members(hint)


def _members(hint: Any) -> tuple[Any, ...]:
    """The members of a union; else the hint itself."""
    if get_origin(hint) is Annotated:
        return _members(get_args(hint)[0])
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _json_kinds(hint: Any) -> frozenset[str]:
    """Which kinds of JSON a value of this type may be. Of a type that we do not know: any."""
    kinds: frozenset[str] = frozenset()
    members = [one for one in _members(hint) if not _is_outcome(one)]
    for member in members:
        kinds |= _kinds_of_one(member)
    return kinds if members else frozenset({"null"})


def _is_outcome(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, Outcome)


def _kinds_of_one(hint: Any) -> frozenset[str]:
    if hint is None or hint is NoneType:
        return frozenset({"null"})
    origin = get_origin(hint)
    if origin is Literal:
        return frozenset().union(*(_kinds_of_one(type(value)) for value in get_args(hint)))
    kind = origin or hint
    if is_typeddict(kind):
        return frozenset({"object"})
    if not isinstance(kind, type):
        return _UNKNOWN
    if issubclass(kind, Enum):
        return frozenset().union(*(_kinds_of_one(type(one.value)) for one in kind))
    if issubclass(kind, msgspec.Struct):
        return frozenset({"array" if kind.__struct_config__.array_like else "object"})
    for types, name in _KINDS:
        if issubclass(kind, types):
            return frozenset({name})
    if dataclasses.is_dataclass(kind):
        return frozenset({"object"})
    return _UNKNOWN


_KINDS: tuple[tuple[tuple[type[Any], ...], str], ...] = (
    ((bool,), "boolean"),
    ((int, float), "number"),
    ((str, bytes, datetime, date, time, timedelta, UUID), "string"),
    ((list, tuple, set, frozenset), "array"),
    ((dict, Mapping), "object"),
)


def _show(hint: Any) -> str:
    return hint.__qualname__ if isinstance(hint, type) and not get_args(hint) else str(hint)
