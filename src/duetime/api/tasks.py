"""The public side of a task: call it to run it, `enqueue` it to have it run."""

from __future__ import annotations

from collections.abc import Coroutine
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypedDict, TypeVar

import msgspec

from duetime.domain.checks import check_key, check_moment, check_name, check_priority, check_queue
from duetime.domain.duration import Duration, parse_duration, parse_positive_duration
from duetime.domain.jobs.job import NewJob, OnConflict
from duetime.domain.jobs.retry import Delays, check_max_attempts
from duetime.domain.jobs.task import TaskDefinition
from duetime.errors import InvalidInput, KeyConflict

if TYPE_CHECKING:
    from duetime.api.jobs import JobHandle
    from duetime.app import Duetime

P = ParamSpec("P")
R = TypeVar("R")

_POLICIES = ("reject", "return", "replace")


class JobOptions(TypedDict, total=False):
    """The keyword arguments of `task.using(…)`, other than `tx`."""

    at: datetime | None
    delay: Duration | None
    queue: str | None
    priority: int | None
    key: str | None
    on_conflict: OnConflict
    hold: Duration | None
    partition: str | None
    max_attempts: int | None
    timeout: Duration | None
    expires: datetime | Duration | None


class Task(Generic[P, R]):
    """A registered handler. Calling it calls the plain function, without a job."""

    def __init__(self, app: Duetime, definition: TaskDefinition, defaults: NewJob) -> None:
        self._app = app
        self.definition = definition
        self._defaults = defaults
        self.__name__ = definition.name
        self.__doc__ = definition.function.__doc__
        self.__wrapped__ = definition.function
        self._plain: BoundTask[P, R] = BoundTask(app, definition, defaults, None)

    def __repr__(self) -> str:
        return f"<task {self.name}>"

    @property
    def name(self) -> str:
        return self.definition.name

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function directly, without a job. If it takes a `Context`, pass one."""
        return self.definition.function(*args, **kwargs)

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue a job, due now or as `using` says; it is durable when this returns."""
        return await self._plain.enqueue(*args, **kwargs)

    def enqueue_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for sync code."""
        return self._plain.enqueue_sync(*args, **kwargs)

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return a job of this task, for `app.enqueue_many`."""
        return msgspec.structs.replace(self._defaults, args=self.definition.encode(args, kwargs))

    def using(
        self,
        *,
        at: datetime | None = None,
        delay: Duration | None = None,
        queue: str | None = None,
        priority: int | None = None,
        key: str | None = None,
        on_conflict: OnConflict = "return",
        hold: Duration | None = None,
        partition: str | None = None,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires: datetime | Duration | None = None,
        tx: Any = None,
    ) -> BoundTask[P, R]:
        """Return the task with options for the jobs that are enqueued through it.

        `at` or `delay`: when it is due. `key`: held while the job waits or runs, and for `hold`
        after it completed; `on_conflict`: what happens if another job holds it. `partition`: the
        label that a queue's `per_partition` limit counts. `expires`: the latest start, as a moment
        or as a duration after it is due. `tx`: the caller's transaction.
        """
        if at is not None and delay is not None:
            raise InvalidInput("at= and delay= cannot be combined.")
        if on_conflict not in _POLICIES:
            raise InvalidInput(f"on_conflict must be one of {_POLICIES}, got {on_conflict!r}.")
        if key is None and (on_conflict != "return" or hold is not None):
            raise InvalidInput("on_conflict= and hold= require key=.")
        changes: dict[str, Any] = {"on_conflict": on_conflict}
        if at is not None:
            changes |= {"run_at": check_moment(at, name="at"), "delay": None}
        if delay is not None:
            changes["delay"] = parse_duration(delay, name="delay")
        if queue is not None:
            changes["queue"] = check_queue(queue)
        if priority is not None:
            changes["priority"] = check_priority(priority)
        if key is not None:
            changes["key"] = check_key(key)
        if hold is not None:
            changes["hold"] = parse_duration(hold, name="hold")
        if partition is not None:
            changes["partition"] = check_name(partition, what="partition")
        if max_attempts is not None:
            changes["max_attempts"] = check_max_attempts(max_attempts)
        if timeout is not None:
            changes["timeout"] = parse_positive_duration(timeout, name="timeout")
        if isinstance(expires, datetime):
            moment = check_moment(expires, name="expires")
            changes |= {"expires_at": moment, "expires_after": None}
        elif expires is not None:
            changes["expires_after"] = parse_positive_duration(expires, name="expires")
        return BoundTask(self._app, self.definition, replace(self._defaults, changes), tx)


class AsyncTask(Task[P, R]):
    """A task whose function is async: await a call of it."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        called: Coroutine[Any, Any, R] = super().__call__(*args, **kwargs)
        return called


class SyncTask(Task[P, R]):
    """A task whose function is sync: workers run it in a thread."""

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        result: R = super().__call__(*args, **kwargs)
        return result


class BoundTask(Generic[P, R]):
    """A task with options, from `task.using(...)`."""

    def __init__(self, app: Duetime, definition: TaskDefinition, template: NewJob, tx: Any) -> None:
        self._app = app
        self._definition = definition
        self._template = template
        self._tx = tx

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> NewJob:
        """Return the job without enqueuing it."""
        return msgspec.structs.replace(self._template, args=self._definition.encode(args, kwargs))

    async def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """Enqueue the job; with `tx=` in the caller's transaction, which may be sync or async.

        Raises `KeyConflict` if the key is held and the policy is `reject`.
        """
        job = self.job(*args, **kwargs)
        [handle] = await self._app.jobs._enqueue([job], tx=self._tx)
        return unless_rejected(job, handle)

    def enqueue_sync(self, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle[R]:
        """`enqueue` for sync code; `tx=` must be a sync transaction."""
        job = self.job(*args, **kwargs)
        [handle] = self._app.jobs._enqueue_sync([job], tx=self._tx)
        return unless_rejected(job, handle)


def unless_rejected(job: NewJob, handle: JobHandle[R]) -> JobHandle[R]:
    """Return the handle of what was enqueued; raise `KeyConflict` if its key is held."""
    if handle.action == "rejected":
        raise KeyConflict(task=job.task, key=job.key or "", job_id=handle.id)
    return handle


def replace(job: NewJob, changes: dict[str, Any]) -> NewJob:
    return msgspec.structs.replace(job, **changes)


def default_job(definition: TaskDefinition) -> NewJob:
    """Return a job of a task, with the task's options and without arguments."""
    options = definition.options
    return NewJob(
        task=definition.name,
        queue=options.queue,
        priority=options.priority,
        max_attempts=options.max_attempts,
        timeout=options.timeout,
        expires_after=options.expires,
        delay=_first_delay(options.retry),
        flow=options.flow,
    )


def _first_delay(retry: Any) -> timedelta | None:
    """The wait before the first attempt: only a table of delays has one."""
    if isinstance(retry, Delays) and retry.delays[0]:
        return retry.delays[0]
    return None
