"""`/api/v1/jobs`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from fastapi import Depends, Query
from msgspec import Meta

from duetime.api.tasks import unless_rejected
from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.jobs.bulk import BulkAction
from duetime.domain.jobs.facets import ErrorGroup, JobFacets
from duetime.domain.jobs.job import EnqueueAction, JobInfo, JobState, NewJob, OnConflict
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
    MomentOrSpan,
    MomentQuery,
    Name,
    Priority,
    Reason,
    Sought,
    Span,
    given,
    moment_or_span,
    read_moment,
    read_wait,
)
from duetime.web.api.routing import Routes, page_of
from duetime.web.filters import check_shown

MAX_BULK = 10_000


class EnqueueBody(msgspec.Struct, forbid_unknown_fields=True):
    """A job to be enqueued. What is left out is as the task's options say."""

    task: Name
    args: Arguments = {}
    at: Moment | None = None
    """When it is due; now, if neither `at` nor `delay` is given."""
    delay: Span | None = None
    queue: Name | None = None
    priority: Priority | None = None
    key: Name | None = None
    """Held while the job waits or runs: see `on_conflict`."""
    on_conflict: OnConflict = "return"
    """What happens if another job holds the key: `return` that one, `replace` it, or `reject`."""
    hold: Span | None = None
    """For how long the key is held after the job completed."""
    partition: Name | None = None
    max_attempts: Annotated[int, Meta(ge=1, le=10_000)] | None = None
    timeout: Span | None = None
    expires: MomentOrSpan | None = None
    """The latest start: a time, or a duration after the job is due."""


class EnqueueManyBody(msgspec.Struct, forbid_unknown_fields=True):
    """Jobs to be enqueued in one transaction: all or none."""

    jobs: Annotated[list[EnqueueBody], Meta(min_length=1, max_length=MAX_BULK)]


class EnqueuedJob(msgspec.Struct):
    """What became of an enqueue."""

    id: int
    action: EnqueueAction
    """`created`; or for a held key `existing`, `replaced` or (in bulk only) `rejected`."""


class EnqueuedJobs(msgspec.Struct):
    """What became of each job, in the order in which they were given."""

    jobs: list[EnqueuedJob]


class CancelAnswer(msgspec.Struct):
    was: JobState
    """The state that the job was in."""


class RescheduleBody(msgspec.Struct, forbid_unknown_fields=True):
    at: MomentOrSpan


class ReprioritiseBody(msgspec.Struct, forbid_unknown_fields=True):
    priority: Priority


class RequeueBody(msgspec.Struct, forbid_unknown_fields=True):
    at: Moment | None = None
    """When the job is due; now, if it is left out."""


class FiltersBody(msgspec.Struct, forbid_unknown_fields=True):
    """Which jobs: those that match all filters."""

    state: Annotated[list[JobState], Meta(max_length=20)] | msgspec.UnsetType = msgspec.UNSET
    queue: Name | msgspec.UnsetType = msgspec.UNSET
    task: Name | msgspec.UnsetType = msgspec.UNSET
    key: Name | msgspec.UnsetType = msgspec.UNSET
    error_code: Name | msgspec.UnsetType = msgspec.UNSET
    args: Annotated[dict[str, Any], Meta(max_length=8)] | msgspec.UnsetType = msgspec.UNSET
    """Values of arguments by path: `{"order.id": 7}`."""
    created_since: Moment | msgspec.UnsetType = msgspec.UNSET
    created_before: Moment | msgspec.UnsetType = msgspec.UNSET
    due_since: Moment | msgspec.UnsetType = msgspec.UNSET
    due_before: Moment | msgspec.UnsetType = msgspec.UNSET


class CancelAllBody(msgspec.Struct, forbid_unknown_fields=True):
    filters: FiltersBody
    reason: Reason | None = None


class RequeueAllBody(msgspec.Struct, forbid_unknown_fields=True):
    filters: FiltersBody
    at: Moment | None = None


class RescheduleAllBody(msgspec.Struct, forbid_unknown_fields=True):
    filters: FiltersBody
    at: MomentOrSpan


class BulkAnswer(msgspec.Struct):
    id: int
    """The job that does it: `/jobs/{id}/bulk_action` says how far it has come."""


class ReplayBody(msgspec.Struct, forbid_unknown_fields=True):
    args: Arguments | None = None
    """All arguments, instead of the old ones."""
    at: Moment | None = None


class ResultAnswer(msgspec.Struct):
    result: Any
    """What the handler returned, as JSON."""


def read_filters(
    state: Annotated[list[JobState], Query(max_length=20)] = [],  # noqa: B006
    queue: Sought = None,
    task: Sought = None,
    key: Sought = None,
    error_code: Sought = None,
    args: Annotated[
        list[Annotated[str, Query(max_length=2100)]],
        Query(max_length=8, description="Values of arguments by path: `order.id=7`."),
    ] = [],  # noqa: B006
    created_since: MomentQuery = None,
    created_before: MomentQuery = None,
    due_since: MomentQuery = None,
    due_before: MomentQuery = None,
) -> dict[str, Any]:
    """The filters in a query; those that it does not have are left out."""
    return {name: value for name, value in locals().items() if value is not None and value != []}


Filters = Annotated[dict[str, Any], Depends(read_filters)]


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="jobs")

    def shown(filters: dict[str, Any]) -> dict[str, Any]:
        check_shown(app, filters)
        return filters

    def chosen(body: FiltersBody) -> dict[str, Any]:
        return shown(given(body))

    @routes.post(
        "/jobs",
        body=EnqueueBody,
        example={"task": "shop.send_invoice", "args": {"order": 42}, "delay": "5m"},
        answer=EnqueuedJob,
        status=201,
        problems=[409],
    )
    async def enqueue_job(body: Any) -> EnqueuedJob:
        """Enqueue a job. It is durable when this answers."""
        job = _new_job(app, body)
        [found] = await app.enqueue_many([job])
        handle = unless_rejected(job, found)
        return EnqueuedJob(handle.id, handle.action or "created")

    @routes.post(
        "/jobs/bulk",
        body=EnqueueManyBody,
        example={"jobs": [{"task": "shop.send_invoice", "args": {"order": 42}}]},
        answer=EnqueuedJobs,
        status=201,
    )
    async def enqueue_jobs(body: Any) -> EnqueuedJobs:
        """Enqueue many jobs in one transaction: all or none."""
        handles = await app.enqueue_many([_new_job(app, job) for job in body.jobs])
        return EnqueuedJobs([EnqueuedJob(one.id, one.action or "created") for one in handles])

    @routes.get("/jobs", answer=page_of(JobInfo))
    async def list_jobs(
        filters: Filters, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[JobInfo]:
        """List jobs that match all filters, newest first."""
        return await app.jobs.list(limit=limit, after=after, **shown(filters))

    @routes.get("/jobs/facets", answer=JobFacets)
    async def count_jobs(filters: Filters) -> JobFacets:
        """Count jobs that match, by state, queue and task; of each state up to 10,000."""
        return await app.jobs.facets(**shown(filters))

    @routes.get("/jobs/errors", answer=list[ErrorGroup])
    async def list_errors(filters: Filters) -> list[ErrorGroup]:
        """List how jobs failed, the most frequent errors first: by task, error code and message."""
        return await app.jobs.errors(**shown(filters))

    @routes.post(
        "/jobs/cancel_all",
        body=CancelAllBody,
        example={"filters": {"task": "shop.send_invoice"}, "reason": "wrong prices"},
        answer=BulkAnswer,
        status=202,
    )
    async def cancel_all_jobs(body: Any, visitor: Visitor) -> BulkAnswer:
        """Cancel all jobs that match now, as a bulk action: a job that you can follow and cancel.

        At least one filter is required.
        """
        started = await app.jobs.cancel_all(
            reason=body.reason, by=visitor.name, **chosen(body.filters)
        )
        return BulkAnswer(started.id)

    @routes.post(
        "/jobs/requeue_all",
        body=RequeueAllBody,
        example={"filters": {"state": ["dead"], "error_code": "ConnectionError"}},
        answer=BulkAnswer,
        status=202,
    )
    async def requeue_all_jobs(body: Any, visitor: Visitor) -> BulkAnswer:
        """Requeue all jobs that match now, as a bulk action: dead ones, unless `state` says
        otherwise. If `filters` is empty, all dead jobs."""
        started = await app.jobs.requeue_all(at=body.at, by=visitor.name, **chosen(body.filters))
        return BulkAnswer(started.id)

    @routes.post(
        "/jobs/reschedule_all",
        body=RescheduleAllBody,
        example={"filters": {"queue": "mail"}, "at": "1h"},
        answer=BulkAnswer,
        status=202,
    )
    async def reschedule_all_jobs(body: Any, visitor: Visitor) -> BulkAnswer:
        """Move all waiting jobs that match now to another time, as a bulk action. At least one
        filter is required."""
        at = await read_moment(app, body.at, name="at")
        started = await app.jobs.reschedule_all(at, by=visitor.name, **chosen(body.filters))
        return BulkAnswer(started.id)

    @routes.get("/jobs/{job_id}/bulk_action", answer=BulkAction, problems=[404])
    async def get_bulk_action(job_id: IdPath) -> BulkAction:
        """Show what a bulk action does, and how far it has come."""
        return await app.jobs.bulk_action(job_id)

    @routes.post(
        "/jobs/{job_id}/replay",
        body=ReplayBody,
        example={"args": {"order": 43}},
        answer=EnqueuedJob,
        status=201,
        problems=[404, 409],
    )
    async def replay_job(job_id: IdPath, body: Any, visitor: Visitor) -> EnqueuedJob:
        """Run a finished job again, as a new job, with its own or other arguments."""
        handle = await app.jobs.replay(job_id, body.args, at=body.at, by=visitor.name)
        return EnqueuedJob(handle.id, handle.action or "created")

    @routes.get("/jobs/{job_id}", answer=JobInfo, problems=[404])
    async def get_job(job_id: IdPath) -> JobInfo:
        """Show a job with its attempts."""
        return await app.jobs.get(job_id)

    @routes.get("/jobs/{job_id}/explain", answer=Explanation, problems=[404])
    async def explain_job(job_id: IdPath) -> Explanation:
        """Explain why a job is or is not running: the chain of checks, passed and failed."""
        return await app.jobs.explain(job_id)

    @routes.get("/jobs/{job_id}/audit", answer=page_of(AuditEvent))
    async def audit_job(
        job_id: IdPath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed a job, newest first."""
        return await app.jobs.audit(job_id, limit=limit, after=after)

    @routes.get("/jobs/{job_id}/result", answer=ResultAnswer, problems=[404, 409])
    async def get_job_result(job_id: IdPath, timeout: DurationQuery = "0s") -> ResultAnswer:
        """Wait for a job to complete and return its result.

        `timeout`: how long to wait, at most one minute. A job that has not finished by then is
        answered with 409 and the code `result_timeout`; ask again.
        """
        return ResultAnswer(await app.jobs.result(job_id, timeout=read_wait(timeout)))

    @routes.post("/jobs/{job_id}/cancel", body=CancelBody, answer=CancelAnswer, problems=[404, 409])
    async def cancel_job(job_id: IdPath, body: Any, visitor: Visitor) -> CancelAnswer:
        """Cancel a job that waits, or ask the worker that runs it to stop it."""
        return CancelAnswer(await app.jobs.cancel(job_id, reason=body.reason, by=visitor.name))

    @routes.post("/jobs/{job_id}/retry", problems=[404, 409])
    async def retry_job(job_id: IdPath, visitor: Visitor) -> None:
        """Run a job that waits now, instead of when it is due."""
        await app.jobs.reschedule(job_id, await app.now(), by=visitor.name)

    @routes.post("/jobs/{job_id}/requeue", body=RequeueBody, problems=[404, 409])
    async def requeue_job(job_id: IdPath, body: Any, visitor: Visitor) -> None:
        """Give a dead, cancelled, expired or superseded job fresh attempts, and its key again."""
        await app.jobs.requeue(job_id, at=body.at, by=visitor.name)

    @routes.post("/jobs/{job_id}/reschedule", body=RescheduleBody, problems=[404, 409])
    async def reschedule_job(job_id: IdPath, body: Any, visitor: Visitor) -> None:
        """Move a job that waits to another time."""
        at = await read_moment(app, body.at, name="at")
        await app.jobs.reschedule(job_id, at, by=visitor.name)

    @routes.post("/jobs/{job_id}/reprioritise", body=ReprioritiseBody, problems=[404, 409])
    async def reprioritise_job(job_id: IdPath, body: Any, visitor: Visitor) -> None:
        """Change the priority of a job that waits."""
        await app.jobs.reprioritise(job_id, body.priority, by=visitor.name)

    return routes


def _new_job(app: Duetime, body: EnqueueBody) -> NewJob:
    return app.jobs.define(body.task, body.args, **_options(body))


def _options(body: EnqueueBody) -> dict[str, Any]:
    options = {
        name: value
        for name in _OPTIONS
        if (value := getattr(body, name)) is not None and name != "expires"
    }
    if body.expires is not None:
        options["expires"] = moment_or_span(body.expires, name="expires")
    return options


_OPTIONS = [name for name in EnqueueBody.__struct_fields__ if name not in ("task", "args")]
