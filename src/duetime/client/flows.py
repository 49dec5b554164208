"""`client.flows`."""

from __future__ import annotations

import builtins
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.client.connection import Connection
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import check_arguments
from duetime.domain.duration import Duration
from duetime.domain.flows.flow import StepInfo
from duetime.domain.flows.run import FlowInfo, FlowState, FlowStateLike
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation


class _Started(msgspec.Struct):
    id: int
    created: bool


class _Status(msgspec.Struct):
    state: FlowState


class _Sent(msgspec.Struct):
    sent: bool


class _Signalled(msgspec.Struct):
    runs: list[int]


class _Was(msgspec.Struct):
    was: FlowState


class Flows:
    """`client.flows`: the verbs of `app.flows`. `client.flows[42]` is one run."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, run_id: int) -> FlowRun:
        return FlowRun(self, run_id)

    async def start(
        self,
        flow: str,
        args: Mapping[str, Any] | None = None,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        key: str | None = None,
    ) -> FlowRun:
        """Start a run of a flow of the service's app; raise `UnknownFlow`."""
        body = {
            "flow": flow, "args": check_arguments(args), "at": at, "delay": delay, "queue": queue,
            "key": key,
        }  # fmt: skip
        run = await self._connection.call("POST /flows", _Started, body=body)
        return FlowRun(self, run.id, created=run.created)

    async def get(self, run_id: int) -> FlowInfo:
        """Return the run; raise `FlowNotFound`."""
        return await self._connection.call("GET /flows/{run_id}", FlowInfo, run_id=run_id)

    async def status(self, run_id: int) -> FlowState:
        """Return the state of the run."""
        answer = await self._connection.call("GET /flows/{run_id}/status", _Status, run_id=run_id)
        return answer.state

    async def list(
        self,
        *,
        state: FlowStateLike | Sequence[FlowStateLike] = (),
        flow: str | None = None,
        key: str | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[FlowInfo]:
        """Return runs that match, newest first."""
        query = {"state": state, "flow": flow, "key": key, "limit": limit, "after": after}
        return await self._connection.page("GET /flows", FlowInfo, query=query)

    iterate = iterated(list)

    async def steps(self, run_id: int) -> builtins.list[StepInfo]:
        """Return what the run has recorded, in order."""
        return await self._connection.call(
            "GET /flows/{run_id}/steps", builtins.list[StepInfo], run_id=run_id
        )

    async def result(self, run_id: int, *, timeout: Duration = "60s") -> Any:
        """Wait for the run to end and return its result as plain JSON data.

        Raises `ResultTimeout` if it has not ended by then, and `JobFailed`.
        """
        return await self._connection.result(
            "GET /flows/{run_id}/result", run_id, timeout=timeout, run_id=run_id
        )

    async def explain(self, run_id: int) -> Explanation:
        """Explain what the run does or waits for, or how it ended."""
        return await self._connection.call(
            "GET /flows/{run_id}/explain", Explanation, run_id=run_id
        )

    async def audit(
        self, run_id: int, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the run, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /flows/{run_id}/audit", AuditEvent, query=query, run_id=run_id
        )

    async def signal(
        self, run_id: int, name: str, data: Any = None, *, key: str | None = None
    ) -> bool:
        """Send a signal to the run. It is kept until the run waits for it.

        With a `key`, a second signal of the same name and key changes nothing: False is returned.
        """
        body = {"name": name, "data": data, "key": key}
        answer = await self._connection.call(
            "POST /flows/{run_id}/signal", _Sent, body=body, run_id=run_id
        )
        return answer.sent

    async def signal_all(
        self, name: str, data: Any = None, *, correlation: str, key: str | None = None
    ) -> builtins.list[int]:
        """Send a signal to all runs that wait for it under the correlation; return them."""
        body = {"name": name, "data": data, "correlation": correlation, "key": key}
        return (await self._connection.call("POST /signals", _Signalled, body=body)).runs

    async def cancel(self, run_id: int, *, reason: str | None = None) -> FlowState:
        """Cancel the run, with the step that runs. Returns the state that it was in."""
        answer = await self._connection.call(
            "POST /flows/{run_id}/cancel", _Was, body={"reason": reason}, run_id=run_id
        )
        return answer.was

    async def retry(self, run_id: int) -> None:
        """Go on with a run that has failed or was cancelled, from the call that failed."""
        await self._connection.call("POST /flows/{run_id}/retry", run_id=run_id)

    async def rerun(self, run_id: int, *, from_step: str | int) -> None:
        """Do the steps of a run that has failed or was cancelled again, from one of them on."""
        body = {"from_step": from_step}
        await self._connection.call("POST /flows/{run_id}/rerun", body=body, run_id=run_id)


class FlowRun(Handle[Flows, int]):
    """One run of a flow of the service, by its id."""

    created: bool = False
    """Whether `start` started it: False if another run holds the key."""

    @property
    def id(self) -> int:
        return self._ref

    get = bound(Flows.get)
    status = bound(Flows.status)
    steps = bound(Flows.steps)
    result = bound(Flows.result)
    explain = bound(Flows.explain)
    audit = bound(Flows.audit)
    signal = bound(Flows.signal)
    cancel = bound(Flows.cancel)
    retry = bound(Flows.retry)
    rerun = bound(Flows.rerun)
