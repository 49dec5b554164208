"""What the code of an application has of a graph, and how its functions get their arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from duetime.domain.flows.declaration import Declaration, Parameter
from duetime.domain.flows.flow import StepState
from duetime.domain.flows.graph import MAX_ITEMS, GraphKind, Shape
from duetime.domain.jobs.task import TaskDefinition
from duetime.engine.context import Context
from duetime.engine.threads import call_in_thread
from duetime.storage.flows.graphs import GraphRun, Output

Outputs = Mapping[tuple[int, int], Output]


class StepCode(NamedTuple):
    """The code of a step or of a compensation."""

    definition: TaskDefinition | None = None
    """Its function; None: a sleep, a signal or a child has none."""
    parameters: Sequence[Parameter] = ()
    item: str | None = None
    """Of a map: the parameter that takes the item."""
    when: Callable[..., Any] | None = None
    condition: Sequence[Parameter] = ()
    """The parameters of `when`."""

    async def call(self, kwargs: dict[str, Any], ctx: Context) -> Any:
        definition = self.definition
        assert definition is not None
        ctx.args = kwargs
        if definition.context_name is not None:
            kwargs = {**kwargs, definition.context_name: ctx}
        if definition.is_async:
            return await definition.function(**kwargs)
        return await call_in_thread(definition.function, **kwargs)


class GraphCode:
    """A graph as the code of this process declares it."""

    def __init__(self, declaration: Declaration) -> None:
        self.declaration = declaration
        self.steps: dict[str, StepCode] = {}

    @property
    def name(self) -> str:
        return self.declaration.graph


class Inputs:
    """What the steps of a run can take: outputs, and the arguments of the run."""

    def __init__(self, code: GraphCode, run: GraphRun, outputs: Outputs) -> None:
        self._code = code
        self._run = run
        self._outputs = outputs
        assert run.shape is not None
        self._shape = run.shape

    def decode(self, step: StepCode, *, item: str | None = None) -> dict[str, Any]:
        """Return the arguments of a step's function; raise `InvalidArguments`."""
        assert step.definition is not None
        given = {} if step.item is None or item is None else {step.item: item}
        return step.definition.decode(self.write_object(step.parameters, given))

    def write_object(
        self, parameters: Iterable[Parameter], given: Mapping[str, str] | None = None
    ) -> bytes:
        """Return the values of parameters as a JSON object."""
        values: dict[str, msgspec.Raw] = {}
        for parameter in parameters:
            text = (given or {}).get(parameter.name) or self.text(parameter.name)
            if text is not None:
                values[parameter.name] = msgspec.Raw(text.encode())
            elif parameter.required:
                values[parameter.name] = msgspec.Raw(b"null")
        return msgspec.json.encode(values)

    def holds(self, step: StepCode) -> bool:
        """Whether the condition of a step is true."""
        if step.when is None:
            return True
        values: dict[str, Any] = {}
        for parameter in step.condition:
            text = self.text(parameter.name)
            if text is not None or parameter.required:
                values[parameter.name] = self._value(parameter.name, text)
        return bool(step.when(**values))

    def text(self, name: str) -> str | None:
        """The value of this name as JSON. None if the step was skipped or has failed."""
        if name not in self._shape:
            found = self._run.args.get(name)
            return None if found is None else bytes(found).decode()
        output = self._outputs.get((self._run.id, self._shape.seq(name)))
        if output is None or output.state is not StepState.COMPLETED:
            return None
        if self._shape[name].kind is GraphKind.MAP:
            return "[" + ",".join(self._items(name)) + "]"
        return output.text or "null"

    def _items(self, name: str) -> list[str]:
        first = self._shape.first_item(name)
        found: list[str] = []
        while (output := self._outputs.get((self._run.id, first + len(found)))) is not None:
            found.append(output.text or "null")
        return found

    def _value(self, name: str, text: str | None) -> Any:
        """The value as the function that made it is annotated to return it."""
        if text is None:
            return None
        value = msgspec.json.decode(text)
        step = self._code.steps.get(name)
        if name not in self._shape or step is None or step.definition is None:
            return value
        if self._shape[name].kind is GraphKind.MAP:
            return [step.definition.decode_result(one, job_id=self._run.id) for one in value]
        return step.definition.decode_result(value, job_id=self._run.id)


def ranges(run: GraphRun, shape: Shape, names: Iterable[str]) -> list[tuple[int, int, int]]:
    """The rows that have the values of these names, as (run, first, last)."""
    found: list[tuple[int, int, int]] = []
    for name in dict.fromkeys(names):
        if name in shape:
            seq = shape.seq(name)
            found.append((run.id, seq, seq))
            if shape[name].kind is GraphKind.MAP:
                first = shape.first_item(name)
                found.append((run.id, first, first + MAX_ITEMS - 2))
    return found
