"""`app.graph`: steps by decorator, and what is refused there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from duetime import Context, Duetime, Graph, InvalidArguments, InvalidInput


@pytest.fixture
def app() -> Duetime:
    return Duetime("sqlite:///unused.db")


@pytest.fixture
def graph(app: Duetime) -> Graph:
    return app.graph("shop")


async def test_a_step_can_be_called_as_the_function_that_it_is(graph: Graph) -> None:
    @graph.step
    async def charge(order: int) -> int:
        """Charge it."""
        return order + 1

    @graph.step(queue="mail")
    def tell(charge: int) -> str:
        return f"charged {charge}"

    assert await charge(6) == 7
    assert charge.__doc__ == "Charge it."
    assert tell(charge=7) == "charged 7"


def test_arguments_are_those_that_the_steps_take(graph: Graph) -> None:
    @graph.step
    async def charge(order: int, ctx: Context, note: Any = None) -> int:
        return order

    @graph.step(when=lambda vip: vip)
    async def ship(charge: int, address: str) -> None: ...

    assert graph.definition.arguments == ("order", "note", "address", "vip")
    job = graph.using().job(order=7, address="here", vip=True)
    assert json.loads(bytes(job.args)) == {"order": 7, "address": "here", "vip": True}
    assert job.flow
    with pytest.raises(InvalidArguments, match="missing required field `address`"):
        graph.using().job(order=7, vip=True)
    with pytest.raises(InvalidArguments, match="oder"):
        graph.using().job(oder=7, address="here", vip=True)
    with pytest.raises(InvalidArguments, match="'order'"):
        graph.using().job(order="seven", address="here", vip=True)


def test_steps_have_tasks_of_their_own(app: Duetime, graph: Graph) -> None:
    @graph.step(name="pay", queue="money", timeout="5s")
    async def charge() -> None: ...

    @graph.on_failure(charge)
    async def refund() -> None: ...

    assert {"shop", "shop.pay", "shop.refund"} <= set(app.tasks)
    assert app.tasks["shop.pay"].options.queue == "money"


def test_a_step_of_another_graph_is_refused(app: Duetime, graph: Graph) -> None:
    other = app.graph("other").sleep("nap", "1s")

    with pytest.raises(InvalidInput, match="is a step of another graph than 'shop'"):
        graph.sleep("wait", "1s", after=[other])


def test_what_is_no_step_is_refused(graph: Graph) -> None:
    with pytest.raises(InvalidInput, match="named by itself or by its name, got 7"):
        graph.sleep("wait", "1s", after=[7])  # type: ignore[list-item]


def test_a_default_without_a_timeout_is_refused(graph: Graph) -> None:
    with pytest.raises(InvalidInput, match="has a default=, but no timeout="):
        graph.signal("approved", default=False)


def test_a_map_takes_an_item(graph: Graph) -> None:
    with pytest.raises(InvalidInput, match="takes no item"):

        @graph.map(over="items")
        async def label() -> None: ...


def test_a_child_is_a_flow(app: Duetime, graph: Graph) -> None:
    @app.task
    async def plain() -> None: ...

    with pytest.raises(InvalidInput, match="takes a flow or a graph"):
        graph.child("plain", plain)  # type: ignore[arg-type]


def test_a_step_is_a_function(graph: Graph) -> None:
    with pytest.raises(InvalidInput, match="must be a function"):
        graph.step(name="odd")(object())  # type: ignore[arg-type]


def test_two_graphs_cannot_have_one_name(app: Duetime, graph: Graph) -> None:
    with pytest.raises(InvalidInput, match="'shop' is registered twice"):
        app.graph("shop")


def test_names_of_our_own_are_refused(app: Duetime) -> None:
    with pytest.raises(InvalidInput, match="reserved"):
        app.graph("duetime.graph")
