"""`client.jobs`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Unpack

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.api.job_filters import JobFilters
from duetime.api.tasks import JobOptions
from duetime.client.connection import Connection
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import check_arguments
from duetime.domain.duration import Duration
from duetime.domain.jobs.arguments import read_arguments
from duetime.domain.jobs.bulk import BulkAction
from duetime.domain.jobs.facets import ErrorGroup, JobFacets
from duetime.domain.jobs.job import EnqueueAction, JobInfo, JobState
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation


class _Enqueued(msgspec.Struct):
    id: int
    action: EnqueueAction


class _AllEnqueued(msgspec.Struct):
    jobs: list[_Enqueued]


class _Started(msgspec.Struct):
    id: int


class _Was(msgspec.Struct):
    was: JobState


class Jobs:
    """`client.jobs`: the verbs of `app.jobs`. `client.jobs[42]` is one of them."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, job_id: int) -> JobHandle:
        return JobHandle(self, job_id)

    async def enqueue(
        self, task: str, args: Mapping[str, Any] | None = None, **options: Unpack[JobOptions]
    ) -> JobHandle:
        """Enqueue a job of a task of the service's app. The options are those of `task.using(…)`.

        Raises `UnknownTask`, `InvalidArguments`, and `KeyConflict`.
        """
        body = {"task": task, "args": check_arguments(args), **options}
        made = await self._connection.call("POST /jobs", _Enqueued, body=body)
        return JobHandle(self, made.id, made.action)

    async def enqueue_many(self, jobs: Iterable[Mapping[str, Any]]) -> builtins.list[JobHandle]:
        """Enqueue many jobs in one transaction: all or none.

        Each is `{"task": …, "args": {…}}`, with the options of `enqueue`. A key that is held is no
        error here: see the handle's `action`.
        """
        body = {"jobs": [*jobs]}
        made = await self._connection.call("POST /jobs/bulk", _AllEnqueued, body=body)
        return [JobHandle(self, one.id, one.action) for one in made.jobs]

    async def get(self, job_id: int) -> JobInfo:
        """Return the job with its history; raise `JobNotFound`."""
        return await self._connection.call("GET /jobs/{job_id}", JobInfo, job_id=job_id)

    async def list(
        self,
        *,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
        **filters: Unpack[JobFilters],
    ) -> Page[JobInfo]:
        """Return jobs that match, newest first. `after`: the `next` of the previous page."""
        query = {**_query(filters), "limit": limit, "after": after}
        return await self._connection.page("GET /jobs", JobInfo, query=query)

    iterate = iterated(list)

    async def facets(self, **filters: Unpack[JobFilters]) -> JobFacets:
        """Return how many jobs match, by state, queue and task; of each state up to 10,000."""
        return await self._connection.call("GET /jobs/facets", JobFacets, query=_query(filters))

    async def errors(self, **filters: Unpack[JobFilters]) -> builtins.list[ErrorGroup]:
        """Return how jobs failed, the most frequent errors first: by task, error code and message.

        Of dead jobs, unless `state=` says otherwise.
        """
        return await self._connection.call(
            "GET /jobs/errors", builtins.list[ErrorGroup], query=_query(filters)
        )

    async def result(self, job_id: int, *, timeout: Duration = "60s") -> Any:
        """Wait for the job to complete and return its result as plain JSON data.

        Raises `ResultTimeout` if it has not finished by then, and `JobFailed`.
        """
        return await self._connection.result(
            "GET /jobs/{job_id}/result", job_id, timeout=timeout, job_id=job_id
        )

    async def explain(self, job_id: int) -> Explanation:
        """Explain why the job is or is not running."""
        return await self._connection.call("GET /jobs/{job_id}/explain", Explanation, job_id=job_id)

    async def audit(
        self, job_id: int, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the job, newest first."""
        return await self._connection.page(
            "GET /jobs/{job_id}/audit",
            AuditEvent,
            query={"limit": limit, "after": after},
            job_id=job_id,
        )

    async def cancel(self, job_id: int, *, reason: str | None = None) -> JobState:
        """Cancel a job that waits, or ask the worker that runs it to stop it.

        Returns the state that it was in.
        """
        answer = await self._connection.call(
            "POST /jobs/{job_id}/cancel", _Was, body={"reason": reason}, job_id=job_id
        )
        return answer.was

    async def retry(self, job_id: int) -> None:
        """Run a job that waits now, instead of when it is due."""
        await self._connection.call("POST /jobs/{job_id}/retry", job_id=job_id)

    async def requeue(self, job_id: int, *, at: datetime | None = None) -> None:
        """Give a dead, cancelled, expired or superseded job fresh attempts, and its key again.

        Raises `KeyConflict` if another job holds the key."""
        await self._connection.call("POST /jobs/{job_id}/requeue", body={"at": at}, job_id=job_id)

    async def reschedule(self, job_id: int, at: datetime | Duration) -> None:
        """Move a job that waits to another time, or to a duration from now."""
        await self._connection.call(
            "POST /jobs/{job_id}/reschedule", body={"at": at}, job_id=job_id
        )

    async def reprioritise(self, job_id: int, priority: int) -> None:
        """Change the priority of a job that waits."""
        await self._connection.call(
            "POST /jobs/{job_id}/reprioritise",
            body={"priority": priority},
            job_id=job_id,
        )

    async def replay(
        self, job_id: int, args: Mapping[str, Any] | None = None, *, at: datetime | None = None
    ) -> JobHandle:
        """Run a finished job again, as a new job, with its own or other arguments."""
        body = {"args": None if args is None else check_arguments(args), "at": at}
        made = await self._connection.call(
            "POST /jobs/{job_id}/replay", _Enqueued, body=body, job_id=job_id
        )
        return JobHandle(self, made.id, made.action)

    # All that match

    async def cancel_all(
        self, *, reason: str | None = None, **filters: Unpack[JobFilters]
    ) -> JobHandle:
        """Cancel all jobs that match now, as a bulk action: a job that you can follow, and cancel.

        It takes the filters of `list`, at least one.
        """
        body = {"filters": _body(filters), "reason": reason}
        return JobHandle(
            self, (await self._connection.call("POST /jobs/cancel_all", _Started, body=body)).id
        )

    async def requeue_all(
        self, *, at: datetime | None = None, **filters: Unpack[JobFilters]
    ) -> JobHandle:
        """Requeue all jobs that match now, dead ones unless `state=` says otherwise, as a bulk
        action."""
        body = {"filters": _body(filters), "at": at}
        return JobHandle(
            self, (await self._connection.call("POST /jobs/requeue_all", _Started, body=body)).id
        )

    async def reschedule_all(
        self, at: datetime | Duration, **filters: Unpack[JobFilters]
    ) -> JobHandle:
        """Move all waiting jobs that match now to another time, as a bulk action."""
        body = {"filters": _body(filters), "at": at}
        return JobHandle(
            self, (await self._connection.call("POST /jobs/reschedule_all", _Started, body=body)).id
        )

    async def bulk_action(self, job_id: int) -> BulkAction:
        """Return what a bulk action does and how far it has come; raise `JobNotFound`, also for a
        job that is not a bulk action."""
        return await self._connection.call(
            "GET /jobs/{job_id}/bulk_action", BulkAction, job_id=job_id
        )


class JobHandle(Handle[Jobs, int]):
    """One job of the service, by its id."""

    action: EnqueueAction | None = None
    """What the enqueue did: `created`; or for a held key `existing`, `replaced` …"""

    @property
    def id(self) -> int:
        return self._ref

    @property
    def created(self) -> bool:
        """Whether the enqueue created this job."""
        return self.action == "created"

    get = bound(Jobs.get)
    result = bound(Jobs.result)
    explain = bound(Jobs.explain)
    audit = bound(Jobs.audit)
    cancel = bound(Jobs.cancel)
    retry = bound(Jobs.retry)
    requeue = bound(Jobs.requeue)
    reschedule = bound(Jobs.reschedule)
    reprioritise = bound(Jobs.reprioritise)
    replay = bound(Jobs.replay)
    bulk_action = bound(Jobs.bulk_action)


def _body(filters: JobFilters) -> dict[str, Any]:
    body = {name: value for name, value in filters.items() if value is not None}
    if (state := filters.get("state")) is not None:
        body["state"] = [state] if isinstance(state, str) else [*state]
    if (args := filters.get("args")) is not None:
        body["args"] = {".".join(one.path): one.value for one in read_arguments(args)}
    return body


def _query(filters: JobFilters) -> dict[str, Any]:
    query: dict[str, Any] = dict(filters)
    if (args := filters.get("args")) is not None:
        query["args"] = [str(condition) for condition in read_arguments(args)]
    return query
