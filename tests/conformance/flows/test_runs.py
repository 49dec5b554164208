"""Runs of flows as people see them: `app.flows.list`, `get` and `explain`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Any

import msgspec
import pytest

from duetime import Constant, Discard, Duetime, Flow, FlowRun, FlowTask, JobFailed, StepFailed
from duetime.domain.flows.flow import StepState
from duetime.errors import FlowNotFound, InvalidInput
from tests.conftest import Backend

NOW = datetime(2026, 3, 8, 9, tzinfo=UTC)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = Duetime(backend.url)
    yield app
    await app.close()


@pytest.fixture
def flows(app: Duetime) -> dict[str, FlowTask[..., Any]]:
    async def book() -> None:
        raise ValueError("no stock")

    @app.flow(name="sleeps")
    async def sleeps(flow: Flow, order: int = 0) -> str:
        await flow.sleep("3d")
        return f"order {order}"

    @app.flow(name="asks")
    async def asks(flow: Flow) -> Any:
        return await flow.wait_for("approved", timeout="7d", correlation="order:7")

    @app.flow(name="stumbles", retry=Constant("1h", max_attempts=2))
    async def stumbles(flow: Flow) -> None:
        await flow.step(book)

    @app.flow(name="ends")
    async def ends(flow: Flow) -> int:
        return 7

    return {flow.name: flow for flow in (sleeps, asks, stumbles, ends)}


async def start_all(flows: Mapping[str, FlowTask[..., Any]]) -> dict[str, FlowRun[Any]]:
    return {name: await flow.start() for name, flow in flows.items()}


async def states(runs: Mapping[str, FlowRun[Any]]) -> dict[str, str]:
    return {name: await run.status() for name, run in runs.items()}


async def test_the_state_of_a_run_says_what_it_waits_for(
    app: Duetime, flows: dict[str, FlowTask[..., Any]]
) -> None:
    async with app.testing(now=NOW) as world:
        runs = await start_all(flows)
        later = await flows["ends"].using(delay="9h").start()
        assert await states(runs) == dict.fromkeys(runs, "pending")

        await world.drain()
        assert await states(runs) == {
            "sleeps": "sleeping",
            "asks": "waiting",
            "stumbles": "retrying",
            "ends": "completed",
        }
        assert await later.status() == "pending"

        await app.jobs.cancel(runs["asks"].id, reason="sold out")
        await world.advance("2h")
        assert await states(runs) == {
            "sleeps": "sleeping",
            "asks": "cancelled",
            "stumbles": "failed",
            "ends": "completed",
        }


async def test_a_run_shows_what_it_was_given_and_waits_for(
    app: Duetime, flows: dict[str, FlowTask[..., Any]]
) -> None:
    async with app.testing(now=NOW) as world:
        run = await flows["sleeps"].using(key="order:7", queue="default").start(order=7)
        await world.advance("1h")
        info = await run.get()

        assert (info.id, info.flow, info.args, info.key) == (
            run.id,
            "sleeps",
            {"order": 7},
            "order:7",
        )
        assert info.created_at == NOW
        assert info.started_at is not None
        assert info.started_at >= NOW
        assert info.finished_at is None
        [wait] = info.waits
        assert (wait.kind, wait.state, wait.until) == ("sleep", "waiting", info.run_at)
        assert wait.until is not None
        assert timedelta(0) <= wait.until - NOW - timedelta(days=3) < timedelta(minutes=1)

        await world.advance("3d")
        done = await run.get()
        assert (done.state, done.waits, done.result, done.run_at) == (
            "completed", (), "order 7", None,
        )  # fmt: skip
        assert done.finished_at is not None


async def test_runs_come_in_pages_newest_first_and_other_jobs_do_not(
    app: Duetime, flows: dict[str, FlowTask[..., Any]]
) -> None:
    @app.task(name="plain")
    async def plain() -> None: ...

    async with app.testing(now=NOW) as world:
        runs = []
        for _ in range(5):
            runs.append((await flows["ends"].start()).id)
            await plain.using(key="k").enqueue()
        await world.drain()

        newest = runs[::-1]
        first = await app.flows.list(limit=2)
        assert [run.id for run in first] == newest[:2]
        second = await app.flows.list(limit=2, after=first.next)
        assert [run.id for run in second] == newest[2:4]
        assert [run.id async for run in app.flows.iterate(limit=2)] == newest
        assert await app.flows.list(key="k") == []


async def test_runs_are_found_by_state_flow_and_key(
    app: Duetime, flows: dict[str, FlowTask[..., Any]]
) -> None:
    async with app.testing(now=NOW) as world:
        await start_all(flows)
        await world.drain()
        keyed = await flows["ends"].using(key="order:7", delay="9h").start()
        cancelled = await flows["asks"].start()
        await app.jobs.cancel(cancelled.id)

        async def found(**filters: Any) -> list[str]:
            return sorted(run.flow for run in await app.flows.list(**filters))

        assert await found(state="sleeping") == ["sleeps"]
        assert await found(state="waiting") == ["asks"]
        assert await found(state="retrying") == ["stumbles"]
        assert await found(state="completed") == ["ends"]
        assert await found(state="pending") == ["ends"]
        assert await found(state="cancelled") == ["asks"]
        assert await found(state=["sleeping", "waiting", "cancelled"]) == ["asks", "asks", "sleeps"]
        assert await found(flow="asks") == ["asks", "asks"]
        assert await found(flow="asks", state="waiting") == ["asks"]
        assert await found(flow="unknown") == []
        assert [run.id for run in await app.flows.list(key="order:7")] == [keyed.id]
        await world.advance("1h")
        assert await found(state="failed") == ["stumbles"]
        with pytest.raises(InvalidInput, match="is not a state of a run"):
            await app.flows.list(state="asleep")  # type: ignore[arg-type]


async def test_a_filter_of_a_rare_state_reads_on_until_the_page_is_full(
    app: Duetime, flows: dict[str, FlowTask[..., Any]]
) -> None:
    """Runs that match may be many pages of candidates away."""
    async with app.testing(now=NOW) as world:
        waiting = await flows["asks"].start()
        await world.drain()
        await app.enqueue_many(flows["ends"].job() for _ in range(150))

        assert [run.id for run in await app.flows.list(state=["waiting", "completed"])] == [
            waiting.id
        ]


async def test_explain_says_what_a_run_waits_for_and_since_when(
    app: Duetime, flows: dict[str, FlowTask[..., Any]]
) -> None:
    async with app.testing(now=NOW) as world:
        runs = await start_all(flows)
        await world.drain()
        said = {name: await run.explain() for name, run in runs.items()}

        assert {name: one.code for name, one in said.items()} == {
            "sleeps": "flow_sleeping",
            "asks": "flow_waiting",
            "stumbles": "flow_retrying",
            "ends": "flow_completed",
        }
        assert "sleeps until 2026-03-11 09:00:00 UTC, for another 3d" in str(said["sleeps"])
        assert (
            "has waited since 2026-03-08 09:00:00 UTC for the signal 'approved', until "
            "2026-03-15 09:00:00 UTC" in str(said["asks"])
        )
        [wait] = said["asks"].steps
        assert (wait.code, wait.facts["correlation"]) == ("waits_for_signal", "order:7")
        assert "tries 'book' again at" in str(said["stumbles"])
        assert str(said["stumbles"]).endswith("after attempt 1 failed: no stock.")

        await world.advance("1h")
        failed = await runs["stumbles"].explain()
        assert failed.code == "flow_failed"
        assert "in step 'book'" in str(failed)
        assert "no stock" in str(failed)


async def test_a_run_that_waits_for_a_worker_is_explained_by_its_job(
    app: Duetime, flows: dict[str, FlowTask[..., Any]]
) -> None:
    run = await flows["ends"].start()
    later = await flows["ends"].using(delay="1h").start()

    assert (await run.explain()).code == "no_worker"
    assert (await later.explain()).code == "flow_not_due"


async def test_a_job_that_is_no_run_is_not_found(app: Duetime) -> None:
    @app.task(name="plain")
    async def plain() -> None: ...

    job = await plain.enqueue()

    with pytest.raises(FlowNotFound):
        await app.flows.get(job.id)
    with pytest.raises(FlowNotFound):
        await app.flows.explain(99)
    with pytest.raises(FlowNotFound):
        await app.flows.steps(99)


async def test_a_run_that_was_undone_is_not_said_to_go_on(app: Duetime) -> None:
    async def refund() -> None: ...

    @app.flow(name="order", retry=Constant("1h", max_attempts=1))
    async def order(flow: Flow) -> None:
        flow.on_failure(refund)
        await flow.step(refund)
        raise ValueError("no stock.")

    async with app.testing(now=NOW) as world:
        run = await order.start()
        await world.drain()
        why = await run.explain()

    assert why.code == "flow_undone"
    assert "no stock. It was undone by " in str(why)
    assert "refund. Run its steps again" in str(why)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (float("nan"), "nan"),
        ([1, {"x": float("inf")}], "inf"),
        (object(), "cannot be written as JSON"),
        ("\ud800", "cannot be written as JSON"),
        ("x\0y", "NUL"),
        ("x" * 2_000_000, "the limit is 1,048,576"),
    ],
    ids=["nan", "inf", "object", "surrogate", "nul", "large"],
)
async def test_data_of_a_signal_that_cannot_be_stored_is_refused(
    app: Duetime, flows: dict[str, FlowTask[..., Any]], data: Any, why: str
) -> None:
    run = await flows["asks"].start()

    with pytest.raises(InvalidInput, match=why):
        await run.signal("approved", data)
    with pytest.raises(InvalidInput, match=why):
        await app.flows.signal_all("approved", data, correlation="nobody")


@pytest.mark.parametrize("args", [[1], [], "x", {1: 2}])
async def test_arguments_of_a_run_that_have_no_names_are_refused(
    app: Duetime, flows: dict[str, FlowTask[..., Any]], args: Any
) -> None:
    with pytest.raises(InvalidInput, match="args must be a mapping"):
        await app.flows.start("asks", args)
    with pytest.raises(InvalidInput, match="argument 'self' is not valid"):
        await app.flows.start("asks", {"self": 1})
    assert await app.flows.list() == []


async def test_who_changed_a_run_is_recorded(
    app: Duetime, flows: dict[str, FlowTask[..., Any]]
) -> None:
    run = await flows["ends"].using(delay="1h").start()
    await app.jobs.cancel(run.id, by="ann")

    [event] = await run.audit()
    assert (event.actor, event.action) == ("ann", "job.cancel")


async def test_a_graph_runs_while_its_steps_do(app: Duetime) -> None:
    graph = app.graph("onboard")

    @graph.step
    def create() -> int:
        return 7

    graph.signal("confirmed", after=[create])

    async with app.testing(now=NOW) as world:
        run = await graph.start()
        assert await world.run_next() is not None
        assert await run.status() == "running"
        assert (await run.explain()).code == "flow_steps_running"
        assert [one.id for one in await app.flows.list(state="running")] == [run.id]
        await world.drain()
        assert await run.status() == "waiting"
        assert "for the signal 'confirmed'" in str(await run.explain())
        await run.signal("confirmed")
        await world.drain()
        assert await run.status() == "completed"


async def test_explain_names_the_step_because_of_which_a_graph_failed(app: Duetime) -> None:
    graph = app.graph("fork", retry=Constant("10ms", max_attempts=1))
    both_run = asyncio.Barrier(2)

    @graph.step
    async def culprit() -> None:
        await both_run.wait()
        raise ValueError("no stock")

    @graph.step
    async def victim() -> None:
        await both_run.wait()
        await asyncio.Event().wait()

    async with app.worker():
        run = await graph.start()
        with pytest.raises(JobFailed):
            await run.result()
        states = {step.name: step.state for step in await run.steps()}
        why = await run.explain()

    assert states == {"culprit": StepState.FAILED, "victim": StepState.FAILED}
    assert why.facts["step"] == "culprit"
    assert "in step 'culprit': Step 'culprit' failed: no stock" in str(why)


async def test_explain_names_the_map_because_of_which_a_graph_failed(app: Duetime) -> None:
    graph = app.graph("fan", retry=Constant("10ms", max_attempts=1))
    all_run = asyncio.Barrier(4)

    @graph.map(over="items")
    async def book(item: int) -> None:
        await all_run.wait()
        if item == 1:
            raise ValueError("no stock")
        await asyncio.Event().wait()

    @graph.step
    async def victim() -> None:
        await all_run.wait()
        await asyncio.Event().wait()

    async with app.worker():
        run = await graph.start(items=[0, 1, 2])
        with pytest.raises(JobFailed):
            await run.result()
        why = await run.explain()

    assert "in step 'book': Step 'book' failed: book[1]: no stock" in str(why)


async def test_explain_names_no_step_whose_failure_was_handled(app: Duetime) -> None:
    async def fail(name: str) -> None:
        raise Discard(name)

    async def book(name: str) -> None:
        raise Discard(name)

    @app.flow(retry=Constant("10ms", max_attempts=1))
    async def order(flow: Flow, last: str) -> None:
        try:
            await flow.step(fail, "handled")
        except StepFailed:
            await flow.sleep("1ms")
        if last == "step":
            await flow.gather(flow.step(book, "no stock"), flow.step(fail, "nor that"))
        raise ValueError("its own")

    async with app.worker():
        runs = [await order.start(last=last) for last in ("step", "flow")]
        for run in runs:
            with pytest.raises(JobFailed):
                await run.result()
        step, own = [await run.explain() for run in runs]

    assert "in step 'book': Step 'book' failed: no stock" in str(step)
    assert "step" not in own.facts
    assert "its own" in str(own)


@pytest.mark.parametrize("zone", [None, UTC], ids=["without a zone", "with a zone"])
async def test_times_in_the_data_of_a_signal_arrive_as_text(
    app: Duetime, flows: dict[str, FlowTask[..., Any]], zone: tzinfo | None
) -> None:
    at = datetime(2030, 1, 1, 9, tzinfo=zone)
    async with app.testing(now=NOW) as world:
        run = await flows["asks"].start()
        await world.drain()
        await run.signal("approved", {"at": [at]})
        await world.drain()
        result = await run.result()

    assert result == {"at": [msgspec.to_builtins(at)]}
