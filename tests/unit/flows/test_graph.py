"""What of a graph can start next, by its shape and the states of its steps."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from duetime.domain.flows.flow import StepState
from duetime.domain.flows.graph import (
    MAX_ITEMS,
    Finish,
    GraphKind,
    JobOptions,
    Node,
    Shape,
    compensations,
    count_pending,
    is_done,
    is_item,
    is_skipped,
    leaves,
    maps_to_resume,
    progress,
    steps_to_repeat,
)

PENDING, RUNNING = StepState.PENDING, StepState.RUNNING
COMPLETED, SKIPPED, FAILED = StepState.COMPLETED, StepState.SKIPPED, StepState.FAILED


def graph(*nodes: Node) -> Shape:
    return Shape(graph="g", nodes=nodes)


def step(name: str, *after: str, without: tuple[str, ...] = (), optional: bool = False) -> Node:
    return Node(name=name, after=after, inputs=after, without=without, optional=optional)


def gate(name: str, *after: str) -> Node:
    return Node(name=name, after=after, conditional=True)


def pending(shape: Shape, **states: StepState) -> dict[str, StepState]:
    return {node.name: states.get(node.name, PENDING) for node in shape.nodes}


def names(nodes: tuple[Node, ...]) -> list[str]:
    return [node.name for node in nodes]


DIAMOND = graph(step("a"), step("b", "a"), step("c", "a"), step("d", "b", "c"))


def test_steps_that_wait_for_nothing_start_first() -> None:
    assert names(progress(DIAMOND, pending(DIAMOND)).ready) == ["a"]


def test_steps_that_wait_for_the_same_one_start_together() -> None:
    assert names(progress(DIAMOND, pending(DIAMOND, a=COMPLETED)).ready) == ["b", "c"]


def test_a_join_waits_for_all_its_branches() -> None:
    one = pending(DIAMOND, a=COMPLETED, b=COMPLETED, c=RUNNING)
    both = one | {"c": COMPLETED}

    assert progress(DIAMOND, one).ready == ()
    assert count_pending(DIAMOND, DIAMOND["d"], one) == 1
    assert names(progress(DIAMOND, both).ready) == ["d"]


def test_a_run_is_done_when_every_step_is() -> None:
    states = pending(DIAMOND, a=COMPLETED, b=COMPLETED, c=COMPLETED)

    assert not progress(DIAMOND, states).done
    assert progress(DIAMOND, states | {"d": COMPLETED}).done


def test_what_depends_on_a_skipped_step_is_skipped_too() -> None:
    shape = graph(gate("a"), step("b", "a"), step("c", "b"))

    found = progress(shape, pending(shape, a=SKIPPED))

    assert names(found.skipped) == ["b", "c"]
    assert found.ready == ()
    assert found.done


def test_a_step_that_can_do_without_a_skipped_one_runs() -> None:
    shape = graph(gate("a"), gate("b"), step("close", "a", "b", without=("a", "b")))

    found = progress(shape, pending(shape, a=SKIPPED, b=COMPLETED))

    assert names(found.ready) == ["close"]
    assert found.skipped == ()


def test_a_skipped_optional_step_stops_nothing() -> None:
    shape = graph(Node(name="a", conditional=True, optional=True), Node(name="b", after=("a",)))

    assert names(progress(shape, pending(shape, a=SKIPPED)).ready) == ["b"]


def test_a_failed_step_fails_the_run() -> None:
    found = progress(DIAMOND, pending(DIAMOND, a=COMPLETED, b=FAILED, c=RUNNING))

    assert found.failed == DIAMOND["b"]
    assert found.ready == ()


def test_the_run_goes_on_without_an_optional_step_that_failed() -> None:
    shape = graph(step("a", optional=True), step("b", "a", without=("a",)))

    found = progress(shape, pending(shape, a=FAILED))

    assert found.failed is None
    assert names(found.ready) == ["b"]


def test_only_states_that_can_cause_a_skip_are_asked_for() -> None:
    shape = graph(step("a"), gate("b"), step("c", "a", "b"), step("d", "c"), step("e", "a"))

    assert shape.skipped_with(shape["c"]) == ("b",)
    assert shape.skipped_with(shape["d"]) == ("c",)
    assert shape.skipped_with(shape["e"]) == ()


def test_a_retry_repeats_what_is_not_done() -> None:
    states = pending(DIAMOND, a=COMPLETED, b=FAILED, c=COMPLETED)

    assert steps_to_repeat(DIAMOND, states) == {"b", "d"}


def test_a_retry_keeps_an_optional_step_that_failed() -> None:
    shape = graph(step("a", optional=True), step("b", "a", without=("a",)), step("c", "b"))

    states = pending(shape, a=FAILED, b=COMPLETED, c=FAILED)

    assert steps_to_repeat(shape, states) == {"c"}


def test_what_depends_on_a_repeated_step_is_repeated() -> None:
    states = pending(DIAMOND, a=COMPLETED, b=COMPLETED, c=COMPLETED, d=COMPLETED)

    assert steps_to_repeat(DIAMOND, states) == frozenset()
    assert steps_to_repeat(DIAMOND, states, from_steps=["b"]) == {"b", "d"}


def test_a_map_is_resumed_unless_it_or_what_it_maps_over_is_repeated() -> None:
    shape = graph(
        step("load"), Node(name="label", kind=GraphKind.MAP, after=("load",)), step("end", "label")
    )

    assert maps_to_resume(shape, {"label", "end"}) == {"label"}
    assert maps_to_resume(shape, {"end"}) == frozenset()
    assert maps_to_resume(shape, {"label", "end"}, from_steps=["label"]) == frozenset()
    assert maps_to_resume(shape, {"load", "label", "end"}) == frozenset()


def test_the_result_is_of_the_steps_that_nothing_waits_for() -> None:
    shape = graph(step("a"), step("b", "a"), step("c", "a"))

    assert names(leaves(shape)) == ["b", "c"]


def test_compensations_come_in_the_order_of_completion() -> None:
    shape = graph(
        Node(name="a", undo="undo_a"), Node(name="b", undo="undo_b"), Node(name="c"),
        Node(name="d", undo="undo_d"),
    )  # fmt: skip

    done = compensations(shape, [("a", 2), ("b", 1), ("c", 0), ("d", 2)])

    assert names(done) == ["b", "a", "d"]


def test_numbers_of_items_lead_to_their_map() -> None:
    shape = graph(step("load"), Node(name="label", kind=GraphKind.MAP, after=("load",)))

    first = shape.first_item("label")

    assert is_item(first)
    assert not is_item(shape.seq("label"))
    assert not is_item(shape.end)
    assert shape.node(first) == shape.node(first + MAX_ITEMS - 2) == shape["label"]
    assert shape.node(1) == shape["load"]
    assert shape.node(shape.end) is None
    assert shape.node(0) is None


def test_a_shape_is_stored_as_json() -> None:
    shape = graph(
        step("a", optional=True),
        Node(name="nap", kind=GraphKind.SLEEP, after=("a",), seconds=5.0),
        Node(name="ok", kind=GraphKind.SIGNAL, default=[1, {"x": None}]),
        Node(name="m", kind=GraphKind.MAP, over="a", job=JobOptions(queue="mail", timeout=1.5)),
    )

    stored = msgspec.json.encode(shape)

    assert msgspec.json.decode(stored, type=Shape) == shape
    assert b"null" not in stored.replace(b'{"x":null}', b"")


def test_a_shape_of_a_later_release_can_be_read() -> None:
    stored = b'{"graph":"g","nodes":[{"name":"a","colour":"red"}],"layout":"wide"}'

    assert msgspec.json.decode(stored, type=Shape) == graph(Node(name="a"))


def test_finish_has_a_result() -> None:
    assert Finish(7).result == 7


# Any graph


@st.composite
def shapes(draw: st.DrawFn) -> Shape:
    nodes: list[Node] = []
    for number in range(draw(st.integers(1, 12))):
        after = draw(st.sets(st.sampled_from(range(number)), max_size=4)) if number else set()
        earlier = tuple(f"s{other}" for other in sorted(after))
        nodes.append(
            Node(
                name=f"s{number}",
                after=earlier,
                inputs=earlier,
                without=tuple(name for name in earlier if draw(st.booleans())),
                conditional=draw(st.booleans()),
                optional=draw(st.booleans()),
            )
        )
    return Shape(graph="g", nodes=tuple(nodes))


class Run:
    """A run of a graph that ends steps in any order, by counting, as the database does."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.states = dict.fromkeys([node.name for node in shape.nodes], PENDING)
        self.pending = {node.name: len(node.after) for node in shape.nodes}
        self.started: list[str] = []
        self.left = len(shape.nodes)
        """What the end of the run waits for."""
        for node in shape.nodes:
            if not node.after:
                self._reached(node)

    @property
    def running(self) -> list[str]:
        return [name for name, state in self.states.items() if state is RUNNING]

    def end(self, name: str, state: StepState) -> None:
        self.states[name] = state
        if is_done(self.shape[name], state):
            self.left -= 1
            for other in self.shape.next(name):
                self.pending[other] -= 1
                if self.pending[other] == 0:
                    self._reached(self.shape[other])

    def _reached(self, node: Node) -> None:
        assert self.states[node.name] is PENDING, "reached twice"
        if is_skipped(self.shape, node, self.states):
            self.end(node.name, SKIPPED)
        else:
            self.started.append(node.name)
            self.states[node.name] = RUNNING


def outcomes(node: Node) -> list[StepState]:
    return (
        [COMPLETED] + ([SKIPPED] if node.conditional else []) + ([FAILED] if node.optional else [])
    )


@given(st.data(), shapes())
def test_counting_agrees_with_looking_at_all_states(data: st.DataObject, shape: Shape) -> None:
    run = Run(shape)
    while run.running:
        found = progress(shape, run.states)
        assert found.ready == found.skipped == ()
        assert found.failed is None
        assert not found.done
        assert run.left > 0
        for node in shape.nodes:
            assert run.pending[node.name] == count_pending(shape, node, run.states)
        name = data.draw(st.sampled_from(run.running))
        run.end(name, data.draw(st.sampled_from(outcomes(shape[name]))))

    assert progress(shape, run.states).done
    assert run.left == 0


@given(st.data(), shapes())
def test_each_step_starts_once_and_after_those_it_waits_for(
    data: st.DataObject, shape: Shape
) -> None:
    run = Run(shape)
    ended: list[str] = []
    while run.running:
        for name in run.started:
            assert all(
                other in ended or run.states[other] is SKIPPED for other in shape[name].after
            )
        name = data.draw(st.sampled_from(run.running))
        run.end(name, data.draw(st.sampled_from(outcomes(shape[name]))))
        ended.append(name)

    assert len(run.started) == len(set(run.started))
    for node in shape.nodes:
        assert (node.name in run.started) or run.states[node.name] is SKIPPED


@given(st.data(), shapes())
def test_a_step_runs_only_if_it_has_all_that_it_needs(data: st.DataObject, shape: Shape) -> None:
    run = Run(shape)
    while run.running:
        name = data.draw(st.sampled_from(run.running))
        run.end(name, data.draw(st.sampled_from(outcomes(shape[name]))))

    for name in run.started:
        node = shape[name]
        for other in node.after:
            if run.states[other] is SKIPPED:
                assert other in node.without or shape[other].optional


@given(st.data(), shapes())
def test_what_is_repeated_leaves_nothing_that_depends_on_it(
    data: st.DataObject, shape: Shape
) -> None:
    states: Mapping[str, StepState] = {
        node.name: data.draw(st.sampled_from(list(StepState))) for node in shape.nodes
    }
    chosen = data.draw(st.sets(st.sampled_from([node.name for node in shape.nodes])))

    repeat = steps_to_repeat(shape, states, from_steps=chosen)

    assert chosen <= repeat
    for node in shape.nodes:
        if node.name not in repeat:
            assert is_done(node, states[node.name])
            assert not repeat.intersection(node.after)
