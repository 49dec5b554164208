"""Mistakes in a graph are errors where they are made, which say what to do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from enum import IntEnum
from typing import Any, Literal

import msgspec
import pytest

from duetime.domain.flows.declaration import Declaration, Parameter, read_function
from duetime.domain.flows.graph import MAX_STEPS, Finish, GraphKind, JobOptions, Node
from duetime.domain.jobs.outcome import Retry
from duetime.errors import InvalidInput


class Context:
    """Stands for the engine's."""


class Payment(msgspec.Struct):
    id: int


class Pair(msgspec.Struct, array_like=True):
    one: int


@dataclass
class Order:
    id: int


class Level(IntEnum):
    LOW = 1


@pytest.fixture
def declared() -> Declaration:
    return Declaration("shop")


def add(declared: Declaration, function: Callable[..., Any], **options: Any) -> Node:
    parameters, returns = read_function(function, context_type=Context)
    return declared.add(function.__name__, parameters=parameters, returns=returns, **options)


def charge(order: int) -> Payment:
    raise NotImplementedError


def test_a_parameter_with_the_name_of_a_step_takes_its_output(declared: Declaration) -> None:
    def ship(charge: Payment, address: str, ctx: Context) -> None: ...

    add(declared, charge)
    node = add(declared, ship)

    assert node.after == node.inputs == ("charge",)
    assert list(declared.arguments) == ["order", "address"]


def test_a_step_waits_for_each_other_step_once(declared: Declaration) -> None:
    def ship(charge: Payment) -> None: ...

    add(declared, charge)
    node = add(declared, ship, after=["charge", "charge"], when=lambda charge: charge)

    assert node.after == ("charge",)
    assert node.conditional


def test_a_condition_is_waited_for(declared: Declaration) -> None:
    declared.add("approved", GraphKind.SIGNAL)

    node = declared.add("ship", when=lambda approved, country: approved and country)

    assert node.after == ("approved",)
    assert list(declared.arguments) == ["country"]


def test_what_may_be_none_can_be_done_without(declared: Declaration) -> None:
    def close(charge: Payment | None, note: int, rate: float = 1.0) -> None: ...

    for name in ("charge", "note", "rate"):
        declared.add(name)

    assert add(declared, close).without == ("charge", "rate")


def test_a_map_waits_for_its_items(declared: Declaration) -> None:
    declared.add("load", returns=list[int])

    assert declared.add("label", GraphKind.MAP, over="load").after == ("load",)


def test_a_map_may_go_over_an_argument_of_the_run(declared: Declaration) -> None:
    declared.add("label", GraphKind.MAP, over="items")

    assert declared.arguments["items"].parameter.hint == list[Any]


def test_the_shape_has_the_steps_in_their_order(declared: Declaration) -> None:
    add(declared, charge, job=JobOptions(queue="money"))
    declared.compensate("charge", "refund", parameters=[Parameter("charge")], job=JobOptions())

    shape = declared.shape

    assert [node.name for node in shape.nodes] == ["charge"]
    assert shape["charge"].undo == "refund"
    assert shape["charge"].job.queue == "money"


def test_an_argument_is_required_if_any_step_requires_it(declared: Declaration) -> None:
    declared.add("a", parameters=[Parameter("x", int, required=False)])
    declared.add("b", parameters=[Parameter("x", int)])

    assert declared.arguments["x"].parameter.required


# Mistakes


def test_unknown_steps_are_refused(declared: Declaration) -> None:
    add(declared, charge)

    with pytest.raises(InvalidInput, match=r"'ship' is declared after='chrage'.*there are: charge"):
        declared.add("ship", after=["chrage"])


def test_a_step_cannot_wait_for_itself(declared: Declaration) -> None:
    with pytest.raises(InvalidInput, match="no step of that name has been declared"):
        declared.add("ship", after=["ship"])


def test_a_cycle_is_refused_where_it_closes(declared: Declaration) -> None:
    declared.add("a", parameters=[Parameter("b")])

    with pytest.raises(InvalidInput, match="Declare 'b' before 'a', or rename one of them"):
        declared.add("b", parameters=[Parameter("a")])


def test_names_are_taken_once(declared: Declaration) -> None:
    add(declared, charge)
    declared.compensate("charge", "refund", parameters=[], job=JobOptions())

    for name in ("charge", "refund"):
        with pytest.raises(InvalidInput, match=f"already has a step '{name}'"):
            declared.add(name)


@pytest.mark.parametrize("name", ["", "a-b", "a b", "7a", "a.b"])
def test_names_can_be_parameters(declared: Declaration, name: str) -> None:
    with pytest.raises(InvalidInput, match="name"):
        declared.add(name)


def test_an_optional_steps_output_may_be_none(declared: Declaration) -> None:
    add(declared, charge, optional=True)

    with pytest.raises(InvalidInput, match=r"Annotate it as `charge: Payment \| None`"):
        declared.add("ship", parameters=[Parameter("charge", Payment)])
    declared.add("ship", parameters=[Parameter("charge", Payment | None)])


@pytest.mark.parametrize(
    ("returned", "taken"),
    [
        (int, str),
        (str, int),
        (bool, int),
        (None, int),
        (Payment, list[int]),
        (Order, str),
        (list[int], dict[str, int]),
        (datetime, int),
        (Literal["a", "b"], int),
        (Level, str),
        (int | Finish, str),
        (Retry | None, int),
        (Pair, dict[str, Any]),
    ],
)
def test_annotations_that_contradict_each_other(
    declared: Declaration, returned: Any, taken: Any
) -> None:
    declared.add("first", returns=returned)

    with pytest.raises(InvalidInput, match="Correct one of the annotations"):
        declared.add("second", parameters=[Parameter("first", taken)])


@pytest.mark.parametrize(
    ("returned", "taken"),
    [
        (int, float),
        (int, int | str),
        (datetime, str),
        (Payment, dict[str, Any]),
        (Order, Payment),
        (Any, int),
        (int, Any),
        (int | Finish, int),
        (tuple[int, ...], list[int]),
        (Level, int),
        (Pair, list[int]),
        (msgspec.Raw, int),
    ],
)
def test_annotations_that_may_fit(declared: Declaration, returned: Any, taken: Any) -> None:
    declared.add("first", returns=returned)

    declared.add("second", parameters=[Parameter("first", taken)])


def test_arguments_of_the_run_have_one_type(declared: Declaration) -> None:
    add(declared, charge)

    with pytest.raises(InvalidInput, match="'charge' takes it as int, and 'ship' as list"):
        declared.add("ship", parameters=[Parameter("order", list)])


def test_a_map_goes_over_a_list(declared: Declaration) -> None:
    add(declared, charge)

    with pytest.raises(InvalidInput, match="annotated to return Payment, not a list"):
        declared.add("label", GraphKind.MAP, over="charge")


def test_a_map_yields_a_list(declared: Declaration) -> None:
    declared.add("label", GraphKind.MAP, over="items", returns=str)

    with pytest.raises(InvalidInput, match="takes 'label' as str"):
        declared.add("total", parameters=[Parameter("label", str)])


def test_a_condition_is_a_plain_function(declared: Declaration) -> None:
    async def ask() -> bool:
        return True

    with pytest.raises(InvalidInput, match="must be a function"):
        declared.add("a", when=True)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="not a coroutine function"):
        declared.add("a", when=ask)


def test_a_compensation_has_a_step(declared: Declaration) -> None:
    with pytest.raises(InvalidInput, match="has no step 'charge', so 'refund' cannot undo it"):
        declared.compensate("charge", "refund", parameters=[], job=JobOptions())


def test_a_step_has_one_compensation(declared: Declaration) -> None:
    add(declared, charge)
    declared.compensate("charge", "refund", parameters=[], job=JobOptions())

    with pytest.raises(InvalidInput, match="already has the compensation 'refund'"):
        declared.compensate("charge", "apologise", parameters=[], job=JobOptions())


def test_a_sleep_has_nothing_to_undo(declared: Declaration) -> None:
    declared.add("nap", GraphKind.SLEEP, seconds=1)

    with pytest.raises(InvalidInput, match="is a sleep, which has no effects"):
        declared.compensate("nap", "wake", parameters=[], job=JobOptions())


def test_a_compensation_takes_what_is_there_when_it_runs(declared: Declaration) -> None:
    declared.add("order")
    declared.add("charge", after=["order"])
    declared.add("ship")

    def undo(hint: Any) -> list[Parameter]:
        return [Parameter("order"), Parameter("charge"), Parameter("ship", hint)]

    with pytest.raises(InvalidInput, match=r"`ship: … \| None`"):
        declared.compensate("charge", "refund", parameters=undo(int), job=JobOptions())
    declared.compensate("charge", "refund", parameters=undo(int | None), job=JobOptions())


def test_a_graph_has_no_more_steps_than_can_be_numbered(declared: Declaration) -> None:
    for number in range(MAX_STEPS):
        declared.add(f"s{number}")

    with pytest.raises(InvalidInput, match="more than 1,000 steps"):
        declared.add("one_more")
