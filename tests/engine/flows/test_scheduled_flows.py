"""A schedule whose target is a flow: a run for each tick, which lasts until the run has ended."""

from __future__ import annotations

from typing import Any

from duetime import Duetime, Flow

NOW = "2026-03-08T08:00Z"


async def test_each_tick_starts_a_run_and_its_row_ends_when_the_run_does(app: Duetime) -> None:
    @app.schedule("0 9 * * *", tz="UTC")
    @app.flow(name="report")
    async def report(flow: Flow) -> str:
        await flow.sleep("5h")
        return "sent"

    async with app.testing(now=NOW) as world:
        await world.advance("2h")
        schedule = await app.schedules.get("report")
        [run] = await app.flows.list(state="sleeping")
        [tick] = [one for one in await app.schedules.history("report") if one.status == "fired"]
        assert schedule.kind == "flow"
        assert (tick.job_id, tick.finished_at, tick.succeeded) == (run.id, None, None)

        await world.advance("5h")
        [tick] = [one for one in await app.schedules.history("report") if one.status == "fired"]
        assert (tick.job_id, tick.succeeded) == (run.id, True)
        assert tick.finished_at is not None
        assert await app.flows[run.id].status() == "completed"


async def test_a_suspended_run_counts_as_running_for_overlap(app: Duetime) -> None:
    @app.flow(name="slow")
    async def slow(flow: Flow) -> None:
        await flow.sleep("30h")

    async with app.testing(now=NOW) as world:
        await app.schedules.put("nightly", slow, "0 9 * * *", tz="UTC", overlap="skip")
        await world.advance("2d")
        ticks = [str(one.status) for one in await app.schedules.history("nightly")]

        assert ticks.count("fired") == 1
        assert ticks.count("skipped") == 1
        await world.advance("1d")
        ticks = [str(one.status) for one in await app.schedules.history("nightly")]
        assert ticks.count("fired") == 2


async def test_a_schedule_that_names_a_flow_starts_runs(app: Duetime) -> None:
    results: list[Any] = []

    @app.flow(name="greet")
    async def greet(flow: Flow, name: str) -> None:
        await flow.sleep("1m")
        results.append(name)

    async with app.testing(now=NOW) as world:
        await app.schedules.put("hello", "greet", "0 9 * * *", tz="UTC", args={"name": "ann"})
        await app.schedules.trigger("hello")
        await world.drain()
        assert (await app.schedules.get("hello")).kind == "flow"
        assert len(await app.flows.list(state="sleeping")) == 1
        await world.advance("2m")
        assert results == ["ann"]
