"""`/api/v1/flows` and `/api/v1/signals`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Query
from msgspec import Meta

from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.flows.flow import StepInfo
from duetime.domain.flows.run import FlowInfo, FlowState
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation
from duetime.web.access import Access
from duetime.web.api.fields import (
    After,
    Arguments,
    CancelBody,
    DurationQuery,
    IdPath,
    Limit,
    Moment,
    Name,
    Sought,
    Span,
    given,
    read_wait,
)
from duetime.web.api.routing import Routes, page_of


class StartBody(msgspec.Struct, forbid_unknown_fields=True):
    """A run to be started."""

    flow: Name
    args: Arguments = {}
    at: Moment | None = None
    delay: Span | None = None
    queue: Name | None = None
    key: Name | None = None
    """While a run holds it, another start returns that run."""


class StartAnswer(msgspec.Struct):
    id: int
    created: bool
    """False: another run holds the key, and this is that."""


class StatusAnswer(msgspec.Struct):
    state: FlowState


class SignalBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    data: Any = None
    key: Name | None = None
    """A second signal of the same name and key changes nothing."""


class SignalAnswer(msgspec.Struct):
    sent: bool
    """False: a signal of the same name and key was sent before."""


class SignalAllBody(msgspec.Struct, forbid_unknown_fields=True):
    name: Name
    correlation: Name
    data: Any = None
    key: Name | None = None


class SignalAllAnswer(msgspec.Struct):
    runs: list[int]
    """The runs that were waiting, and have the signal now."""


class CancelFlowAnswer(msgspec.Struct):
    was: FlowState


class RerunBody(msgspec.Struct, forbid_unknown_fields=True):
    from_step: Name | Annotated[int, Meta(ge=1, le=2**31 - 1)]
    """A step's name (the first of that name) or its number."""


class FlowResult(msgspec.Struct):
    result: Any
    """What the flow returned, as JSON."""


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="flows")

    @routes.post(
        "/flows",
        body=StartBody,
        example={"flow": "shop.order", "args": {"order": 42}, "key": "order:42"},
        answer=StartAnswer,
        status=201,
        problems=[409],
    )
    async def start_flow(body: Any) -> StartAnswer:
        """Start a run of a flow. It is durable when this answers."""
        run = await app.flows.start(body.flow, body.args, **given(body, "flow", "args"))
        return StartAnswer(run.id, run.created)

    @routes.get("/flows", answer=page_of(FlowInfo))
    async def list_flows(
        state: Annotated[list[FlowState], Query(max_length=20)] = [],  # noqa: B006
        flow: Sought = None,
        key: Sought = None,
        limit: Limit = DEFAULT_LIMIT,
        after: After = None,
    ) -> Page[FlowInfo]:
        """List runs of flows, newest first."""
        return await app.flows.list(state=state, flow=flow, key=key, limit=limit, after=after)

    @routes.get("/flows/{run_id}", answer=FlowInfo, problems=[404])
    async def get_flow(run_id: IdPath) -> FlowInfo:
        """Show a run."""
        return await app.flows.get(run_id)

    @routes.get("/flows/{run_id}/status", answer=StatusAnswer, problems=[404])
    async def get_flow_status(run_id: IdPath) -> StatusAnswer:
        """Show the state of a run."""
        return StatusAnswer(await app.flows.status(run_id))

    @routes.get("/flows/{run_id}/steps", answer=list[StepInfo], problems=[404])
    async def list_steps(run_id: IdPath) -> list[StepInfo]:
        """List what a run has recorded, in order."""
        await app.flows.get(run_id)
        return await app.flows.steps(run_id)

    @routes.get("/flows/{run_id}/result", answer=FlowResult, problems=[404, 409])
    async def get_flow_result(run_id: IdPath, timeout: DurationQuery = "0s") -> FlowResult:
        """Wait for a run to end, at most one minute, and return its result."""
        return FlowResult(await app.flows.result(run_id, timeout=read_wait(timeout)))

    @routes.get("/flows/{run_id}/explain", answer=Explanation, problems=[404])
    async def explain_flow(run_id: IdPath) -> Explanation:
        """Explain what a run does or waits for, or how it ended."""
        return await app.flows.explain(run_id)

    @routes.get("/flows/{run_id}/audit", answer=page_of(AuditEvent))
    async def audit_flow(
        run_id: IdPath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed a run, newest first."""
        return await app.flows.audit(run_id, limit=limit, after=after)

    @routes.post(
        "/flows/{run_id}/signal",
        body=SignalBody,
        example={"name": "approved", "data": {"by": "ann"}},
        answer=SignalAnswer,
        problems=[404, 409],
    )
    async def signal_flow(run_id: IdPath, body: Any, visitor: Visitor) -> SignalAnswer:
        """Send a signal to a run. It is kept until the run waits for it."""
        sent = await app.flows.signal(run_id, body.name, body.data, key=body.key, by=visitor.name)
        return SignalAnswer(sent)

    @routes.post("/signals", body=SignalAllBody, answer=SignalAllAnswer, problems=[404, 409])
    async def signal_all_flows(body: Any, visitor: Visitor) -> SignalAllAnswer:
        """Send a signal to all runs that wait for it under a correlation."""
        runs = await app.flows.signal_all(
            body.name, body.data, correlation=body.correlation, key=body.key, by=visitor.name
        )
        return SignalAllAnswer(runs)

    @routes.post(
        "/flows/{run_id}/cancel",
        body=CancelBody,
        answer=CancelFlowAnswer,
        problems=[404, 409],
    )
    async def cancel_flow(run_id: IdPath, body: Any, visitor: Visitor) -> CancelFlowAnswer:
        """Cancel a run, with the step that runs. Its compensations run."""
        return CancelFlowAnswer(await app.flows.cancel(run_id, reason=body.reason, by=visitor.name))

    @routes.post("/flows/{run_id}/retry", problems=[404, 409])
    async def retry_flow(run_id: IdPath, visitor: Visitor) -> None:
        """Go on with a run that has failed or was cancelled, from the call that failed."""
        await app.flows.retry(run_id, by=visitor.name)

    @routes.post("/flows/{run_id}/rerun", body=RerunBody, problems=[404, 409])
    async def rerun_flow(run_id: IdPath, body: Any, visitor: Visitor) -> None:
        """Do the steps of a run that has failed or was cancelled again, from one of them on."""
        await app.flows.rerun(run_id, from_step=body.from_step, by=visitor.name)

    return routes
