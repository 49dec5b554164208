"""A flow as the handler of its task: load, replay, go on; then end, or suspend."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from duetime.domain.flows.flow import Suspension
from duetime.domain.jobs.outcome import Discard
from duetime.engine.context import Context
from duetime.errors import ClaimLost, FlowChanged, StepFailed, TransientError
from duetime.flows.flow import Flow, Policy, Suspended
from duetime.flows.recorder import Pause, Recorder

if TYPE_CHECKING:
    from duetime.app import Duetime


def flow_handler(
    app: Duetime, function: Callable[..., Any], *, flow_name: str, policy: Policy
) -> Callable[..., Any]:
    """Return the handler of a flow's task: what a worker calls for a run of it."""

    async def handler(**kwargs: Any) -> Any:
        ctx: Context = kwargs.pop(flow_name)
        return await run_flow(app._flow_recorder, function, ctx, kwargs, flow_name, policy)

    return handler


async def run_flow(
    recorder: Recorder,
    function: Callable[..., Any],
    ctx: Context,
    kwargs: dict[str, Any],
    flow_name: str,
    policy: Policy,
) -> Any:
    """Go on with a run until it ends or waits."""
    while True:
        loaded = await recorder.load(ctx.id)
        flow = Flow(ctx, recorder=recorder, loaded=loaded, policy=policy)
        try:
            value = await function(**{flow_name: flow}, **kwargs)
            flow.check_finished()
            return value
        except Suspended:
            pass
        except BaseExceptionGroup as group:
            if group.split(Suspended)[1] is not None:
                raise
        except (ClaimLost, TransientError, StepFailed):
            raise
        except FlowChanged as error:
            # No later attempt can help; the run keeps its place until the code is mended.
            raise Discard(str(error)) from error
        except Exception as error:
            if not flow.retry_later(error):
                raise
        pause = Pause(
            flow._take_unrecorded(),
            Suspension(
                run=ctx.id,
                token=ctx.token,
                started=ctx.started_us,
                finished=ctx.elapsed_us,
                waits=flow.waits,
            ),
        )
        answer = await recorder.suspend(pause)
        if answer == "lost":
            raise ClaimLost(ctx.id, ctx.token)
        if answer == "suspended":
            ctx.suspended = True
            return None
