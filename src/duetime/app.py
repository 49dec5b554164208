"""The application: a registry of tasks, and the way to its database."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
from collections import ChainMap
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, overload
from weakref import WeakKeyDictionary

from duetime.api.jobs import Jobs, Queues
from duetime.api.portal import Portal, keep_inherited
from duetime.api.recipients import Recipients
from duetime.api.registration import Registrations
from duetime.api.schedules import Schedules
from duetime.api.subjects import Reminders, Scopes, Subjects
from duetime.api.tables import Tracking
from duetime.api.tasks import JobHandle, Task, first_delay, positive
from duetime.api.worker_thread import WorkerThread
from duetime.channels.channel import Channel
from duetime.domain.duration import Duration
from duetime.domain.jobs.job import (
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
    Enqueued,
    NewJob,
    check_name,
    check_priority,
    check_queue,
    check_task_not_reserved,
)
from duetime.domain.jobs.rate import parse_rate
from duetime.domain.jobs.retry import (
    Exponential,
    RetryPolicy,
    check_errors,
    check_max_attempts,
    check_policy,
)
from duetime.domain.jobs.task import TaskDefinition, TaskOptions
from duetime.domain.reminders.digest import DIGEST_TASK
from duetime.domain.reminders.reminder import ESCALATE_TASK, REARM_TASK, REMIND_TASK
from duetime.domain.schedules.timetable import Spec
from duetime.engine.context import Context
from duetime.engine.handler_source import refuse_return_in_transaction
from duetime.engine.options import WorkerOptions
from duetime.engine.services import OUTAGE_SECONDS
from duetime.engine.worker import Worker
from duetime.errors import InvalidInput, PassingError
from duetime.reminders.deliveries import receipt
from duetime.reminders.handlers import context_name
from duetime.reminders.rearm import rearm_task
from duetime.reminders.send_attempt import ConfiguredChannel
from duetime.reminders.sender import Sender
from duetime.settings import Settings, load_settings
from duetime.storage import transaction
from duetime.storage.migrations import check_version, upgrade
from duetime.storage.reminders.tracking import TrackedInfo
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.schedules.rows import AuditEvent
from duetime.storage.store import Dialect, Statements, Store, WorkerInfo
from duetime.telemetry.events import Events
from duetime.telemetry.outage import Outage
from duetime.wiring import backend_of, make_migrator, make_store

if TYPE_CHECKING:
    from duetime.testing import Opening

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
AUDITED = ("subject", "scope", "recipient", "schedule", "table")
TaskT = TypeVar("TaskT", bound=Task[..., Any])
_ONE_HANDLER = "An app has one: register a function that calls both."


class Duetime:
    """Durable jobs on the database that you already have.

    `Duetime("postgresql://…")` or `Duetime("sqlite:///jobs.db")`; without an argument the
    environment's `DUETIME_DATABASE`, else `sqlite:///duetime.db`. Keyword arguments are settings.
    """

    def __init__(self, database: str | None = None, **settings: Any) -> None:
        self.settings: Settings = load_settings({"database": database, **settings})
        backend_of(self.settings.database)
        self.tasks: dict[str, TaskDefinition] = {}
        self._registrations = Registrations()
        self.jobs = Jobs(self)
        self.queues = Queues(self)
        self.schedules = Schedules(self)
        self.scopes = Scopes(self)
        self.subjects = Subjects(self)
        self.recipients = Recipients(self)
        self.reminders = Reminders(self)
        self._sender = Sender(self)
        self._own_tasks = {REARM_TASK: rearm_task(self)}
        self._tracking = Tracking(self)
        self.events = Events()
        self._stores: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Store]] = (
            WeakKeyDictionary()
        )
        self._checked = False
        self._check_lock = threading.Lock()
        self._portal = Portal(self.close, self._forget_parent)
        self._text_store: tuple[Settings, Store] | None = None
        self._inline: Callable[[Sequence[NewJob]], Awaitable[list[Enqueued]]] | None = None

    # Tasks

    @overload
    def task(self, function: Callable[Concatenate[Context, P], Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...
    @overload
    def task(
        self,
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        keep_result: bool = True,
    ) -> Registrar: ...

    def task(self, *function: Any, **options: Any) -> Any:
        """Register a function as a task. Its name is `module.function` unless `name=` is given.

        Raises `InvalidInput` if another function has that name; see `duetime.registration`.
        `retry`: a policy such as `Exponential("60s")` or `Delays("0s", "30s", "5m")`.
        `retry_on`: the errors that may pass; any other ends the job as dead.
        """
        if (name := options.get("name")) is not None:
            check_task_not_reserved(name)
        if not function:
            return lambda function: self._register(function, **options)
        return self._register(*function, **options)

    def _register(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        queue: str = DEFAULT_QUEUE,
        priority: int = DEFAULT_PRIORITY,
        retry: RetryPolicy | None = None,
        retry_on: type[BaseException] | tuple[type[BaseException], ...] = Exception,
        max_attempts: int | None = None,
        timeout: Duration | None = None,
        expires: Duration | None = None,
        keep_result: bool = True,
        overrides_jobs: bool = False,
    ) -> Task[..., Any]:
        if not inspect.isroutine(function):
            raise InvalidInput(
                f"A task must be a function, got {function!r:.100}. Write a function that calls it."
            )
        policy = (
            Exponential(self.settings.retry_base, max_attempts=self.settings.max_attempts)
            if retry is None
            else check_policy(retry)
        )
        options = TaskOptions(
            queue=check_queue(queue),
            priority=check_priority(priority),
            retry=policy,
            retry_on=check_errors(retry_on),
            max_attempts=check_max_attempts(
                policy.max_attempts if max_attempts is None else max_attempts
            ),
            timeout=None if timeout is None else positive(timeout, name="timeout"),
            expires=None if expires is None else positive(expires, name="expires"),
            keep_result=keep_result,
            max_args_bytes=self.settings.max_args_bytes,
            overrides_jobs=overrides_jobs,
        )
        definition = TaskDefinition(
            function,
            name=f"{_module_of(function)}.{function.__qualname__}" if name is None else name,
            options=options,
            context_type=Context,
        )
        refuse_return_in_transaction(
            function, definition.context_name, what=f"Task {definition.name!r}"
        )
        self._registrations.add(
            f"task {definition.name!r}",
            function,
            advice="Give each function a name of its own with name=.",
        )
        self.tasks[definition.name] = definition
        defaults = NewJob(
            task=definition.name,
            queue=options.queue,
            priority=options.priority,
            max_attempts=options.max_attempts,
            timeout=options.timeout,
            expires_after=options.expires,
            delay=first_delay(policy),
        )
        return Task(self, definition, defaults)

    @property
    def known_tasks(self) -> Mapping[str, TaskDefinition]:
        """The app's tasks, and those that every worker has."""
        return ChainMap(self.tasks, self._own_tasks)

    # Schedules

    def schedule(
        self, *specs: Spec, name: str | None = None, **options: Any
    ) -> Callable[[TaskT], TaskT]:
        """Declare when a task runs: `@app.schedule("0 9 * * 1-5", tz="America/New_York")`.

        Above `@app.task`; several times for several schedules, each with its own `name=` and
        `args=`. The options are those of `app.schedules.put`. Every worker stores the
        declaration when it starts; a pause stays.
        """

        def declare(task: TaskT) -> TaskT:
            if not isinstance(task, Task):
                raise InvalidInput("@app.schedule goes above @app.task: it takes a task.")
            self.schedules.declare(
                self.schedules.define(task.name if name is None else name, task, *specs, **options)
            )
            return task

        return declare

    # Reminders

    def on_reminder(self, *handler: Any, **options: Any) -> Any:
        """Register what sends reminders: a function of the `Reminder` and, if it takes two
        arguments, the `Context`. It returns `Sent(external_id=…)`, `Retry`, `Snooze`, `Skip`.

        `@app.on_reminder`, or `@app.on_reminder(retry=…, timeout=…)` with the options of a task.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            refuse_return_in_transaction(
                function, context_name(function), what="The @app.on_reminder handler"
            )
            self._registrations.add("@app.on_reminder handler", function, advice=_ONE_HANDLER)
            self._register_remind(**options)
            self._sender.handler = function
            return function

        return register(*handler) if handler else register

    def on_digest(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        """Register what sends digests: a function of the `Digest` and, if it takes two arguments,
        the `Context`. It answers as that of `@app.on_reminder`.

        A digest is what waited because its recipient gets at most so many in an hour.
        """
        refuse_return_in_transaction(
            handler, context_name(handler), what="The @app.on_digest handler"
        )
        self._registrations.add("@app.on_digest handler", handler, advice=_ONE_HANDLER)
        self._sender.digest_handler = handler
        return handler

    def add_channel(
        self,
        channel: Channel,
        *,
        tries: int | None = None,
        rate: str | None = None,
        retry_for: Duration | None = None,
        replace: bool = False,
        **options: Any,
    ) -> None:
        """Send reminders through a channel; several are tried in the order in which they came.

        A failure that may pass is retried until the reminder expires, or for a day if it does
        not. `retry_for`: at most so long. `tries`: at most so often. The next channel is asked
        after so many tries, by default after as many as a reminder has attempts. `rate`: at most
        so many messages over all workers, such as `"10/s"`. `replace`: it takes the place of the
        one of its name, as a test wants it. The other options are a task's, for all reminders:
        give each once.
        """
        if not all(hasattr(channel, part) for part in ("name", "send", "close")):
            raise InvalidInput(
                f"A channel is an object with a name, an async send(message) and an async close(), "
                f"not {channel!r:.100}."
            )
        name = check_name(channel.name, what="channel")
        configured = ConfiguredChannel(
            channel,
            None if tries is None else check_max_attempts(tries, name="tries"),
            None if rate is None else parse_rate(rate),
            None if retry_for is None else positive(retry_for, name="retry_for"),
        )
        self._registrations.add(
            f"channel {name!r}",
            channel,
            replace=replace,
            advice="Give one of them another name=, or pass replace=True.",
        )
        self._register_remind(replace=replace, **options)
        self._sender.channels[name] = configured

    def template(self, name: str, *, body: str, title: str | None = None) -> None:
        """Add a text that rules use by its name: `{"rule": "-1h", "template": "soon"}`.

        Raises `InvalidInput` with the line if it is not a template. Needs Jinja2.
        """
        self._sender.messages.add(name, body=body, title=title)

    def template_folder(self, folder: str | Path) -> list[str]:
        """Add every `NAME.txt` of a folder as the template NAME; return their names.

        Its first line is the title, if an empty line follows; the rest is the body.
        """
        return self._sender.messages.add_folder(folder)

    def digest_template(self, name: str) -> None:
        """Have digests say what the template of this name says; it may be added later."""
        self._sender.messages.use_for_digests(name)

    async def receipt(
        self,
        external_id: str | None,
        status: str,
        *,
        key: str | None = None,
        reason: str | None = None,
        channel: str | None = None,
        by: str = "provider",
        tx: Any = None,
    ) -> int:
        """Record what a provider tells later: `delivered`, `bounced`, `failed`, `acknowledged`.

        Returns how many deliveries it told more of: 0 if that was known, or is late. After
        `bounced` or `failed` the next channel is tried. `key`: the message's, if the provider
        echoes it. By it a message is found whose send is not recorded: the provider was faster, or
        its answer was lost. Then that channel is not asked again. Raises `DeliveryNotFound`.
        """
        return await receipt(
            self, external_id, status, key=key, reason=reason, channel=channel, by=by, tx=tx
        )

    def _register_remind(self, *, replace: bool = False, **options: Any) -> None:
        sender = self._sender
        for name, value in options.items():
            self._registrations.add(
                f"option {name}= of reminders",
                value,
                replace=replace,
                advice="It holds for all reminders: give it once.",
            )
        # Those of an earlier channel hold on.
        sender.options |= options
        own = sender.options | {"overrides_jobs": True}
        self._register(sender.remind, name=REMIND_TASK, **own)
        self._register(sender.digest, name=DIGEST_TASK, **own)
        lane = {n: value for n, value in sender.options.items() if n in ("queue", "priority")}
        patient = Exponential("1s", max="1m", max_attempts=100)
        sender.escalation = self._register(
            sender.escalate, name=ESCALATE_TASK, retry=patient, **lane
        )

    # Tracked tables

    async def track(
        self,
        table: str,
        *,
        id: str | Iterable[str],  # noqa: A002
        due: str,
        scope: str | None = None,
        tz: str | None = None,
        due_tz: str | None = None,
        recipients: str | None = None,
        data: str | Iterable[str] = (),
        when: str | None = None,
        remind: Any = None,
        name: str | None = None,
        by: str = "unknown",
        progress: Callable[[int, int], None] | None = None,
    ) -> int:
        """Make the rows of a table subjects, by triggers on it; return how many rows there are.

        `id`, `due`, `tz`, `recipients`, `data` name columns; `tz` may also be a time zone. `scope`
        is a column or a pattern such as `channel:{channel_id}`. `when` is a condition of SQL: a row
        for which it is not true has no reminders. `due_tz` is the zone of due times without one.
        Again under the same `name` (by default the table's), it changes what is tracked.
        """
        return await self._tracking.track(
            table, by=by, progress=progress, id=id, due=due, scope=scope, tz=tz, due_tz=due_tz,
            recipients=recipients, data=data, when=when, remind=remind, name=name,
        )  # fmt: skip

    async def plan_track(self, table: str, **options: Any) -> list[str]:
        """Return the SQL that `track` would run on the table, without running it."""
        return await self._tracking.plan(table, **options)

    async def untrack(self, name: str, *, by: str = "unknown") -> int:
        """Remove the triggers of a tracked table, and its subjects with their reminders; return
        how many subjects those were."""
        return await self._tracking.untrack(name, by=by)

    async def tracked(self) -> list[TrackedInfo]:
        """Return what is tracked, with what is wrong with it."""
        return await self._tracking.all()

    # Enqueue

    async def enqueue_many(self, jobs: Iterable[NewJob], *, tx: Any = None) -> list[JobHandle[Any]]:
        """Enqueue many jobs, made by `task.job(…)`, in one transaction: all or none.

        A job whose key is held comes back as its policy says; `rejected` ones are not an error.
        """
        given = list(jobs)
        enqueued = await self.enqueue_jobs(given, tx=tx)
        return [
            JobHandle(self, job.task, answer) for job, answer in zip(given, enqueued, strict=True)
        ]

    async def enqueue_jobs(self, jobs: Sequence[NewJob], *, tx: Any = None) -> list[Enqueued]:
        """`enqueue_many`, with plain values."""
        _check_jobs(jobs)
        if not jobs:
            return []
        if self._inline is not None:
            return await self._inline(jobs)
        if tx is None:
            return await (await self.store()).enqueue(jobs)
        store = self._unopened()
        answer: list[Enqueued] = await transaction.run_async(
            tx, store.enqueue_in(jobs), placeholder=store.capabilities.placeholder
        )
        return answer

    def enqueue_jobs_sync(self, jobs: Sequence[NewJob], *, tx: Any = None) -> list[Enqueued]:
        """`enqueue_jobs` for sync code."""
        if tx is None or self._inline is not None:
            return self.sync(self.enqueue_jobs(jobs))
        _check_jobs(jobs)
        store = self._unopened()
        answer: list[Enqueued] = transaction.run(
            tx, store.enqueue_in(jobs), placeholder=store.capabilities.placeholder
        )
        return answer

    def sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run any of Duetime's coroutines from sync code: `app.sync(app.jobs.get(7))`."""
        return self._portal.call(coroutine)

    # Look

    async def workers(self) -> list[WorkerInfo]:
        """Return the workers that have registered, alive or not yet buried."""
        return await (await self.store()).workers()

    async def now(self) -> datetime:
        """The database's clock."""
        return await (await self.store()).now()

    async def audit(self, entity: str, *, before_id: int | None = None) -> list[AuditEvent]:
        """Return who changed what, newest first: of `subject:game:42`, `schedule:nightly`, …"""
        if not isinstance(entity, str) or entity.partition(":")[0] not in AUDITED:
            known = ", ".join(f"{kind}:…" for kind in AUDITED)
            raise InvalidInput(f"The audit has no {entity!r:.60}. It has {known}.")
        store = await self.store()
        statements = ScheduleStatements(store.dialect)
        events: list[AuditEvent] = await store.transact(
            statements.audit(entity, before_id=before_id), reads=True
        )
        return events

    # Work

    def make_worker(self, store: Store, **options: Any) -> Worker:
        """Return a worker with the app's settings, changed by `options`."""
        merged = load_settings(
            _given(self.settings) | {k: v for k, v in options.items() if k != "name"}
        )
        values = {
            field: getattr(merged, field)
            for field in WorkerOptions.__struct_fields__
            if field != "name"
        }
        for queue in merged.queues:
            check_queue(queue)
        if options.get("name") is not None:
            check_name(options["name"], what="worker's name")
        return Worker(
            store,
            self.known_tasks,
            WorkerOptions(**values, name=options.get("name")),
            self.events,
            self.schedules.declared,
        )

    @asynccontextmanager
    async def worker(self, **options: Any) -> AsyncIterator[Worker]:
        """Run a worker beside your code: `async with app.worker(queues=["mail"]): …`.

        If the database is away, the block begins when it is back. When the block ends the worker
        stops claiming, finishes within the grace time, and gives the rest back.
        """
        worker, running = await self.start_worker(**options)
        try:
            yield worker
        finally:
            worker.stop()
            await running

    async def start_worker(self, **options: Any) -> tuple[Worker, asyncio.Task[None]]:
        """Start a worker; return it, and the task that ends when the worker has stopped.

        A database that is away is waited for.
        """
        outage = Outage(options.get("name"))
        while True:
            try:
                worker = self.make_worker(await self.store(), **options)
                worker.outage = outage
                running = asyncio.create_task(worker.run(), name="duetime-worker")
                await _until_started(worker, running)
                return worker, running
            except PassingError as error:
                outage.failed("start", error, OUTAGE_SECONDS)
                await asyncio.sleep(OUTAGE_SECONDS)

    def worker_thread(self, **options: Any) -> WorkerThread:
        """Start a worker on a background thread, for hosts without an event loop."""
        return WorkerThread(self, options)

    def lifespan(
        self, *, worker: bool = True, **options: Any
    ) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """Return a lifespan for FastAPI or Starlette that starts and stops with the host."""

        @asynccontextmanager
        async def lifespan(_host: Any) -> AsyncIterator[None]:
            try:
                if worker:
                    async with self.worker(**options):
                        yield
                else:
                    yield
            finally:
                await self.close()

        return lifespan

    def testing(
        self,
        now: datetime | str | None = None,
        *,
        inline: bool = False,
        isolated: bool = True,
        most: int = 1000,
    ) -> Opening:
        """A world of its own for a test: a clock that stands still, `advance`, `drain`.

        `async with app.testing(now="2026-03-08T00:00Z") as world:`, or `with` in sync code. See
        `duetime.testing.open_world` for the options.
        """
        from duetime.testing import open_world

        return open_world(self, now=now, inline=inline, isolated=isolated, most=most)

    # The database

    async def store(self) -> Store:
        """Return this event loop's store, opened."""
        loop = asyncio.get_running_loop()
        opening = self._stores.get(loop)
        if opening is None or (opening.done() and (opening.cancelled() or opening.exception())):
            opening = self._stores[loop] = asyncio.create_task(self._open_store())
        return await asyncio.shield(opening)

    async def close(self) -> None:
        """Close this event loop's connections. The app can be used again afterwards."""
        opening = self._stores.pop(asyncio.get_running_loop(), None)
        if opening is not None:
            await (await opening).close()
        for configured in self._sender.channels.values():
            await configured.channel.close()

    def _forget_parent(self) -> None:
        """In a forked process: the connections are the parent's, and their loops are gone."""
        keep_inherited(dict(self._stores))
        self._stores = WeakKeyDictionary()
        self._check_lock = threading.Lock()

    async def _perform(
        self,
        make: Callable[[Dialect], Statements],
        tx: Any = None,
        *,
        reads: bool = False,
        computes: bool = False,
    ) -> Any:
        """Run statements in a transaction of their own, or in the caller's. `reads`: they change
        nothing, and are one statement. `computes`: they compute much between them."""
        if tx is None:
            store = await self.store()
            return await store.transact(make(store.dialect), reads=reads, computes=computes)
        store = self._unopened()
        placeholder = store.capabilities.placeholder
        return await transaction.run_async(tx, make(store.dialect), placeholder=placeholder)

    def _unopened(self) -> Store:
        """A store for its statements alone: writing in the caller's transaction needs no
        connection of ours, and must not wait for one."""
        if self._text_store is None or self._text_store[0] is not self.settings:
            self._text_store = (self.settings, make_store(self.settings))
        return self._text_store[1]

    async def _open_store(self) -> Store:
        if not self._checked:
            await asyncio.to_thread(self._check_schema)
        # Off the loop: the driver is imported, and the statements are read.
        store = await asyncio.to_thread(make_store, self.settings)
        await store.open()
        return store

    def _check_schema(self) -> None:
        with self._check_lock:
            if self._checked:
                return
            migrator = make_migrator(self.settings)
            migrate = self.settings.migrate
            if migrate or (migrate is None and backend_of(self.settings.database) == "sqlite"):
                upgrade(migrator)
            check_version(migrator.version(), len(migrator.migrations))
            self._checked = True


async def _until_started(worker: Worker, running: asyncio.Task[None]) -> None:
    started = asyncio.create_task(worker.started.wait())
    try:
        await asyncio.wait([running, started], return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
    except asyncio.CancelledError:
        worker.stop(now=True)
        await running
        raise
    finally:
        started.cancel()


class Registrar(Protocol):
    """`@app.task(…)`: keeps the function's signature."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Awaitable[R]], /
    ) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, Awaitable[R]], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...


def _module_of(function: Callable[..., Any]) -> str:
    """The module's name; of a script the one under which a worker imports it."""
    module = function.__module__
    # A spawned process runs the script under the second name.
    if module in ("__main__", "__mp_main__"):
        main = sys.modules[module]
        spec = getattr(main, "__spec__", None)
        if spec is not None:
            return str(spec.name)
        if file := getattr(main, "__file__", None):
            return Path(file).stem
    return module


def _check_jobs(jobs: Sequence[NewJob]) -> None:
    for job in jobs:
        if not isinstance(job, NewJob):
            raise InvalidInput(f"enqueue_many takes jobs made by task.job(…), got {job!r}.")


def _given(settings: Settings) -> dict[str, Any]:
    return {field: getattr(settings, field) for field in settings.__struct_fields__}
