"""What ends an activation of a run is not an error that its function can handle."""

from __future__ import annotations

import pytest

from duetime import Duetime, Flow, JobFailed


@pytest.mark.parametrize("call", ["step", "sleep", "on_failure"])
async def test_a_step_that_makes_a_call_of_its_flow_fails_at_once(app: Duetime, call: str) -> None:
    """A replay would not make the call again; a wait would hold the worker for ever."""

    async def inner() -> None: ...

    @app.flow(name="nested")
    async def nested(flow: Flow) -> None:
        async def outer() -> None:
            match call:
                case "step":
                    await flow.step(inner)
                case "sleep":
                    await flow.sleep("10ms")
                case _:
                    flow.on_failure(inner)

        await flow.step(outer)

    async with app.worker():
        run = await nested.start()
        with pytest.raises(JobFailed, match="Step 'outer' failed: A step cannot make calls of its"):
            await run.result()

    [step] = await run.steps()
    assert (step.name, step.state, step.attempt) == ("outer", "failed", 1)
