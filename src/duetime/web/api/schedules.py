"""`/api/v1/schedules`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Query
from msgspec import Meta

from duetime.api.schedules import ScheduleInfo
from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation
from duetime.domain.schedules.preview import PreviewRow
from duetime.domain.schedules.schedule import CatchUp, Overlap, TickStatus
from duetime.storage.schedules.rows import NewSchedule, TickInfo
from duetime.web.access import Access
from duetime.web.api.fields import (
    After,
    Arguments,
    Count,
    Limit,
    Moment,
    MomentOrSpan,
    MomentQuery,
    Name,
    NamePath,
    Priority,
    PutAnswer,
    Reason,
    ReasonQuery,
    Sought,
    Span,
    Specs,
    given,
    moment_or_span,
)
from duetime.web.api.routing import Routes, page_of

_Runs = Annotated[int, Meta(ge=1, le=1_000_000)]


class ScheduleBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What runs when. What is left out has its default; see the guide on schedules."""

    task: Name
    specs: Specs = []
    args: Arguments = {}
    tz: Name | None = None
    exclude: Annotated[list[Annotated[str, Meta(max_length=200)]], Meta(max_length=1000)] = []
    """Local dates and cron masks at which nothing runs."""
    start: Moment | None = None
    end: Moment | None = None
    jitter: Span | None = None
    preset: Name | None = None
    queue: Name | None = None
    priority: Priority | None = None
    catch_up: CatchUp | msgspec.UnsetType = msgspec.UNSET
    max_runs: _Runs | msgspec.UnsetType | None = msgspec.UNSET
    max_age: Span | msgspec.UnsetType | None = msgspec.UNSET
    pace: Span | msgspec.UnsetType = msgspec.UNSET
    grace: Span | msgspec.UnsetType = msgspec.UNSET
    overlap: Overlap | msgspec.UnsetType = msgspec.UNSET
    max_concurrent_runs: _Runs | msgspec.UnsetType = msgspec.UNSET
    burst_allowed: bool | msgspec.UnsetType = msgspec.UNSET
    after: Name | msgspec.UnsetType | None = msgspec.UNSET
    within: Span | msgspec.UnsetType = msgspec.UNSET
    wait: Span | msgspec.UnsetType | None = msgspec.UNSET
    pause_after: _Runs | msgspec.UnsetType | None = msgspec.UNSET
    expires: Span | msgspec.UnsetType | None = msgspec.UNSET
    shadow: bool | msgspec.UnsetType = msgspec.UNSET


class NamedScheduleBody(ScheduleBody, kw_only=True):
    """A schedule with its name."""

    name: Name
    renamed_from: Name | None = None
    """Its previous name: it keeps its history and its pause."""


class ApplyBody(msgspec.Struct, forbid_unknown_fields=True):
    """Schedules to be stored, all or none."""

    schedules: Annotated[list[NamedScheduleBody], Meta(max_length=1000)]
    prune: bool = False
    """Remove what an earlier apply with `prune` declared, and is not among these."""


class ApplyAnswer(msgspec.Struct):
    results: dict[str, str]
    """By name: `added`, `changed`, `same`, `renamed` or `removed`."""


class PauseScheduleBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Reason = ""
    until: MomentOrSpan | None = None
    """When it resumes by itself."""


class ResumeBody(msgspec.Struct, forbid_unknown_fields=True):
    missed: bool = False
    """Catch up on the ticks of the pause, as `catch_up` says."""


class TriggerBody(msgspec.Struct, forbid_unknown_fields=True):
    reason: Reason | None = None


class TriggerAnswer(msgspec.Struct):
    job_id: int


class RescheduleRunBody(msgspec.Struct, forbid_unknown_fields=True):
    at: MomentOrSpan


class RescheduledRun(msgspec.Struct):
    tick: datetime
    """The tick whose run was moved."""


class BackfillBody(msgspec.Struct, forbid_unknown_fields=True):
    start: Moment
    end: Moment
    """Not included."""
    failed: bool = False
    """Also run the ticks again whose run ended without success."""


class BackfillAnswer(msgspec.Struct):
    runs: int


class PreviewAnswer(msgspec.Struct):
    when: str
    """The times in words."""
    ticks: Sequence[PreviewRow]


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="schedules")

    @routes.get("/schedules", answer=page_of(ScheduleInfo), alias="/api/schedules")
    async def list_schedules(
        limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[ScheduleInfo]:
        """List schedules by name."""
        return await app.schedules.list(limit=limit, after=after)

    @routes.put(
        "/schedules",
        body=ApplyBody,
        example={"schedules": [{"name": "nightly", "task": "shop.report", "specs": ["0 2 * * *"]}]},
        answer=ApplyAnswer,
        problems=[404, 409],
    )
    async def apply_schedules(body: Any, visitor: Visitor) -> ApplyAnswer:
        """Store schedules, all or none: what is new is added, what differs is changed."""

        def define() -> list[NewSchedule]:
            return [_define(app, one) for one in body.schedules]

        # Off the loop: some times are only found, or refused, after a long search.
        new = await asyncio.to_thread(define)
        return ApplyAnswer(await app.schedules.apply(new, prune=body.prune, by=visitor.name))

    @routes.get("/preview", answer=PreviewAnswer, problems=[404])
    async def preview_times(
        specs: Annotated[
            list[Annotated[str, Query(max_length=1000)]],
            Query(max_length=100, description="Cron, `@every 10m`, `RRULE:…`, single times."),
        ] = [],  # noqa: B006
        preset: Sought = None,
        tz: Sought = None,
        exclude: Annotated[
            list[Annotated[str, Query(max_length=200)]], Query(max_length=1000)
        ] = [],  # noqa: B006
        start: MomentQuery = None,
        end: MomentQuery = None,
        n: Count = 10,
        since: MomentQuery = None,
    ) -> PreviewAnswer:
        """Show the next ticks of any times, without a schedule."""
        times, ticks = await app.schedules.preview_times(
            *specs, preset=preset, tz=tz, exclude=exclude, start=start, end=end, n=n, since=since
        )
        return PreviewAnswer(times.describe(), ticks)

    @routes.get("/schedules/{name}", answer=ScheduleInfo, problems=[404])
    async def get_schedule(name: NamePath) -> ScheduleInfo:
        """Show a schedule."""
        return await app.schedules.get(name)

    @routes.put(
        "/schedules/{name}",
        body=ScheduleBody,
        example={"task": "shop.report", "specs": ["0 9 * * 1-5"], "tz": "Europe/Berlin"},
        answer=PutAnswer,
        problems=[404, 409],
    )
    async def put_schedule(name: NamePath, body: Any, visitor: Visitor) -> PutAnswer:
        """Add a schedule, or change the one of that name."""
        options = given(body, "task", "specs")
        return PutAnswer(
            await app.schedules.put(name, body.task, *body.specs, by=visitor.name, **options)
        )

    @routes.delete("/schedules/{name}", problems=[404])
    async def delete_schedule(name: NamePath, visitor: Visitor, reason: ReasonQuery = None) -> None:
        """Delete a schedule and its ledger. Runs that have started continue."""
        await app.schedules.delete(name, reason=reason, by=visitor.name)

    @routes.post(
        "/schedules/{name}/pause",
        body=PauseScheduleBody,
        example={"reason": "migration", "until": "2h"},
        problems=[404],
    )
    async def pause_schedule(name: NamePath, body: Any, visitor: Visitor) -> None:
        """Start no more runs, on any worker. Runs that have started continue."""
        until = None if body.until is None else moment_or_span(body.until, name="until")
        await app.schedules.pause(name, reason=body.reason, until=until, by=visitor.name)

    @routes.post("/schedules/{name}/resume", body=ResumeBody, problems=[404])
    async def resume_schedule(name: NamePath, body: Any, visitor: Visitor) -> None:
        """Start runs again."""
        await app.schedules.resume(name, missed=body.missed, by=visitor.name)

    @routes.post(
        "/schedules/{name}/trigger", body=TriggerBody, answer=TriggerAnswer, problems=[404]
    )
    async def trigger_schedule(name: NamePath, body: Any, visitor: Visitor) -> TriggerAnswer:
        """Run a schedule once now. Its next run does not change."""
        return TriggerAnswer(await app.schedules.trigger(name, reason=body.reason, by=visitor.name))

    @routes.post(
        "/schedules/{name}/reschedule",
        body=RescheduleRunBody,
        example={"at": "30m"},
        answer=RescheduledRun,
        problems=[404],
    )
    async def reschedule_schedule(name: NamePath, body: Any, visitor: Visitor) -> RescheduledRun:
        """Move the next run to a time, or to a duration from now. Other runs do not change."""
        at = moment_or_span(body.at, name="at")
        return RescheduledRun(await app.schedules.reschedule(name, at, by=visitor.name))

    @routes.post(
        "/schedules/{name}/backfill",
        body=BackfillBody,
        example={"start": "2026-03-01T00:00:00Z", "end": "2026-03-02T00:00:00Z"},
        answer=BackfillAnswer,
        problems=[404],
    )
    async def backfill_schedule(name: NamePath, body: Any, visitor: Visitor) -> BackfillAnswer:
        """Run the ticks of a past span that have not run."""
        return BackfillAnswer(
            await app.schedules.backfill(
                name, body.start, body.end, failed=body.failed, by=visitor.name
            )
        )

    @routes.get("/schedules/{name}/preview", answer=list[PreviewRow], problems=[404])
    async def preview_schedule(
        name: NamePath, n: Count = 10, since: MomentQuery = None
    ) -> Sequence[PreviewRow]:
        """Show the next ticks of a schedule, with notes where clocks change."""
        return await app.schedules.preview(name, n, since=since)

    @routes.get("/schedules/{name}/history", answer=page_of(TickInfo), problems=[404])
    async def list_ticks(
        name: NamePath,
        since: MomentQuery = None,
        before: MomentQuery = None,
        status: TickStatus | None = None,
        limit: Limit = DEFAULT_LIMIT,
        after: After = None,
    ) -> Page[TickInfo]:
        """List the outcome of each tick, newest first."""
        return await app.schedules.history(
            name, since=since, before=before, status=status, limit=limit, after=after
        )

    @routes.get("/schedules/{name}/explain", answer=Explanation, problems=[404])
    async def explain_schedule(name: NamePath, tick: MomentQuery = None) -> Explanation:
        """Explain why a schedule does or does not run; with `tick`, the outcome of that tick."""
        return await app.schedules.explain(name, tick)

    @routes.get("/schedules/{name}/audit", answer=page_of(AuditEvent))
    async def audit_schedule(
        name: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed a schedule, newest first."""
        return await app.schedules.audit(name, limit=limit, after=after)

    return routes


def _define(app: Duetime, body: NamedScheduleBody) -> NewSchedule:
    options = given(body, "name", "task", "specs")
    options["tz"] = body.tz or "UTC"
    return app.schedules.define(body.name, body.task, *body.specs, **options)
