"""The application: registers tasks, connects to the database and starts workers."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

from duetime.api.hooks import HookRegistry
from duetime.api.lazy import lazy
from duetime.api.registration import Registrations
from duetime.api.sending import Sending
from duetime.api.task_registry import TaskRegistry
from duetime.api.tasks import Task
from duetime.api.webhook_tasks import WebhookTaskRegistry
from duetime.domain.checks import check_many, check_name, check_queue
from duetime.domain.jobs.job import Enqueued, NewJob
from duetime.domain.jobs.task import TaskDefinition
from duetime.errors import InvalidInput
from duetime.settings import (
    Settings,
    SettingsArguments,
    WorkerArguments,
    change_settings,
    load_settings,
)
from duetime.telemetry.events import Events
from duetime.wiring import check_urls

# `import duetime` is quick: each part is imported when it is first used.
if TYPE_CHECKING:
    import asyncio

    from duetime.api.accounts import Accounts
    from duetime.api.alerts import AlertRegistry
    from duetime.api.audit import Audit
    from duetime.api.flows import FlowRegistry, Flows
    from duetime.api.graphs import GraphRegistry
    from duetime.api.idempotency import Idempotency
    from duetime.api.jobs import JobHandle, Jobs
    from duetime.api.listening import Listening
    from duetime.api.metrics import MetricsReader
    from duetime.api.portal import Portal
    from duetime.api.queues import Queues
    from duetime.api.recipients import Recipients
    from duetime.api.reminders import Reminders
    from duetime.api.schedules import ScheduleArguments, Schedules
    from duetime.api.scopes import Scopes
    from duetime.api.secrets import InstallationSecrets
    from duetime.api.sessions import Sessions
    from duetime.api.stats import Stats
    from duetime.api.subjects import Subjects
    from duetime.api.tables import Tables
    from duetime.api.tokens import Tokens
    from duetime.api.worker_thread import WorkerThread
    from duetime.api.workers import Workers
    from duetime.database import Database
    from duetime.domain.access.visitor import Visitor
    from duetime.domain.alert import AlertEvent
    from duetime.domain.duration import Duration
    from duetime.domain.findings import Finding, Thresholds
    from duetime.domain.redaction import Redaction
    from duetime.domain.schedules.timetable import Spec
    from duetime.engine.followers import MakeFollower
    from duetime.engine.worker import Worker
    from duetime.flows.graph import GraphSteps
    from duetime.flows.recorder import Recorder
    from duetime.reminders.sender import Sender
    from duetime.storage.store import Dialect, Statements, Store
    from duetime.testing import Opening

T = TypeVar("T")
TaskT = TypeVar("TaskT", bound=Task[..., Any])


class Duetime:
    """Durable jobs on the database that you already have.

    `Duetime("postgresql://…")` or `Duetime("sqlite:///jobs.db")`; without an argument the
    environment's `DUETIME_DATABASE`, else `sqlite:///duetime.db`. Keyword arguments are settings.
    """

    def __init__(self, database: str | None = None, **settings: Unpack[SettingsArguments]) -> None:
        self.settings: Settings = load_settings({"database": database, **settings})
        check_urls(self.settings)
        self.tasks: dict[str, TaskDefinition] = {}
        self.task = TaskRegistry(self)
        self.webhook_task = WebhookTaskRegistry(self)
        self._registrations = Registrations()
        sending = Sending(self)
        self.on_reminder = sending.on_reminder
        self.on_digest = sending.on_digest
        self.add_channel = sending.add_channel
        self.template = sending.template
        self.template_folder = sending.template_folder
        self.digest_template = sending.digest_template
        self.receipt = sending.receipt
        hooks = HookRegistry(self)
        self._hook_registry = hooks
        self.on_startup = hooks.on_startup
        self.on_shutdown = hooks.on_shutdown
        self.middleware = hooks.middleware
        self.on_error = hooks.on_error
        self.redact = hooks.redact
        self._events = Events()
        self._running_workers: list[tuple[Worker, asyncio.Task[None]]] = []
        self.store = self._open_store
        self._inline: Callable[[Sequence[NewJob]], Awaitable[list[Enqueued]]] | None = None

    # Parts

    @lazy
    def jobs(self) -> Jobs:
        """Inspect and change jobs."""
        from duetime.api.jobs import Jobs

        return Jobs(self)

    @lazy
    def queues(self) -> Queues:
        """Inspect, pause and limit queues."""
        from duetime.api.queues import Queues

        return Queues(self)

    @lazy
    def schedules(self) -> Schedules:
        """Declare, change and inspect schedules."""
        from duetime.api.schedules import Schedules

        return Schedules(self)

    @lazy
    def flow(self) -> FlowRegistry:
        """Make an async function durable: `@app.flow`."""
        from duetime.api.flows import FlowRegistry

        return FlowRegistry(self)

    @lazy
    def graph(self) -> GraphRegistry:
        """Declare a flow as a graph of steps: `graph = app.graph("onboard")`."""
        from duetime.api.graphs import GraphRegistry

        return GraphRegistry(self)

    @lazy
    def flows(self) -> Flows:
        """Inspect, signal and change runs of flows."""
        from duetime.api.flows import Flows

        return Flows(self)

    @lazy
    def _flow_recorder(self) -> Recorder:
        from duetime.flows.recorder import Recorder

        return Recorder(self)

    @lazy
    def _graph_steps(self) -> GraphSteps:
        from duetime.flows.graph import GraphSteps

        return GraphSteps(self)

    @lazy
    def scopes(self) -> Scopes:
        """Change and inspect scopes, whose rules the scopes and subjects inside them inherit."""
        from duetime.api.scopes import Scopes

        return Scopes(self)

    @lazy
    def subjects(self) -> Subjects:
        """Change and inspect subjects: what people are reminded of."""
        from duetime.api.subjects import Subjects

        return Subjects(self)

    @lazy
    def recipients(self) -> Recipients:
        """Change and inspect recipients: who is reminded, on which channels and when."""
        from duetime.api.recipients import Recipients

        return Recipients(self)

    @lazy
    def reminders(self) -> Reminders:
        """Inspect, acknowledge, snooze and resend reminders."""
        from duetime.api.reminders import Reminders

        return Reminders(self)

    @lazy
    def workers(self) -> Workers:
        """Inspect live workers."""
        from duetime.api.workers import Workers

        return Workers(self)

    @lazy
    def stats(self) -> Stats:
        """Read the numbers that people watch."""
        from duetime.api.stats import Stats

        return Stats(self)

    @lazy
    def audit(self) -> Audit:
        """Inspect who changed what."""
        from duetime.api.audit import Audit

        return Audit(self)

    @lazy
    def accounts(self) -> Accounts:
        """Add, change and inspect accounts: people who may use the service."""
        from duetime.api.accounts import Accounts

        return Accounts(self)

    @lazy
    def sessions(self) -> Sessions:
        """Log people in and out of the service, and check their sessions."""
        from duetime.api.sessions import Sessions

        return Sessions(self)

    @lazy
    def _idempotency(self) -> Idempotency:
        from duetime.api.idempotency import Idempotency

        return Idempotency(self)

    @lazy
    def _secrets(self) -> InstallationSecrets:
        from duetime.api.secrets import InstallationSecrets

        return InstallationSecrets(self)

    @lazy
    def tokens(self) -> Tokens:
        """Create, revoke and check API tokens, by which programs use the service."""
        from duetime.api.tokens import Tokens

        return Tokens(self)

    @lazy
    def _database(self) -> Database:
        from duetime.database import Database

        return Database(self)

    @lazy
    def _portal(self) -> Portal:
        from duetime.api.portal import Portal

        # The database makes us, so that it is not asked for yet.
        return Portal(self.close, lambda: self._database.forget_parent())  # noqa: PLW0108

    @lazy
    def _alerts(self) -> AlertRegistry:
        from duetime.api.alerts import AlertRegistry

        return AlertRegistry(self)

    @lazy
    def _metrics(self) -> MetricsReader:
        from duetime.api.metrics import MetricsReader

        return MetricsReader(self)

    @lazy
    def _sender(self) -> Sender:
        from duetime.reminders.sender import Sender

        return Sender(self)

    @lazy
    def tables(self) -> Tables:
        """Track the rows of your own tables as subjects of reminders."""
        from duetime.api.tables import Tables

        return Tables(self)

    @lazy
    def _own_tasks(self) -> dict[str, TaskDefinition]:
        from duetime.api.bulk import bulk_task
        from duetime.domain.jobs.bulk import BULK_TASK
        from duetime.domain.reminders.reminder import REARM_TASK
        from duetime.reminders.rearm import rearm_task

        return {REARM_TASK: rearm_task(self), BULK_TASK: bulk_task(self)}

    # Tasks

    @lazy
    def _redaction(self) -> Redaction:
        from duetime.domain.redaction import Redaction

        return Redaction(self.settings.redact_names, self._hook_registry.redactions)

    def redacted(self, value: T) -> T:
        """Return a record, such as a `JobInfo`, or a list of them, as it may be shown to people:
        without the values of names such as `password`, and as `@app.redact` says."""
        return self._redaction.record(value)

    @property
    def _known_tasks(self) -> Mapping[str, TaskDefinition]:
        """The app's tasks, and those that every worker has."""
        return ChainMap(self.tasks, self._own_tasks)

    # Schedules

    def schedule(
        self, *specs: Spec, name: str | None = None, **options: Unpack[ScheduleArguments]
    ) -> Callable[[TaskT], TaskT]:
        """Declare when a task runs: `@app.schedule("0 9 * * 1-5", tz="America/New_York")`.

        Use it above `@app.task`, once for each schedule, each with its own `name=` and
        `args=`. The options are those of `app.schedules.put`. Every worker stores the
        declaration when it starts; a pause stays.
        """

        def declare(task: TaskT) -> TaskT:
            if not isinstance(task, Task):
                raise InvalidInput(
                    "@app.schedule must be placed above @app.task, because it decorates a task."
                )
            self.schedules.declare(
                self.schedules.define(task.name if name is None else name, task, *specs, **options)
            )
            return task

        return declare

    # Alerts

    def alert(
        self,
        name: str,
        *,
        channels: Mapping[str, str | None] | Sequence[str],
        on: Sequence[AlertEvent] | None = None,
        every: Duration = "15m",
    ) -> None:
        """Report dead jobs and missed ticks: `app.alert("ops", channels={"email": "ops@a.org"})`.

        `channels`: those of `add_channel`, tried in turn, each with its address. `on`: `job_dead`,
        `tick_missed`, or both. `every`: at most one message in this time, about all events in it.
        """
        self._alerts.add(name, channels, on, every)

    # Enqueue

    async def enqueue_many(self, jobs: Iterable[NewJob], *, tx: Any = None) -> list[JobHandle[Any]]:
        """Enqueue many jobs, made by `task.job(…)`, in one transaction: all or none.

        If a job's key is held, its `on_conflict` applies; a `rejected` job is not an error.
        """
        given = check_many(jobs, takes="enqueue_many() takes jobs returned by task.job()")
        return await self.jobs._enqueue(given, tx=tx)

    def sync(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run any of Duetime's coroutines from sync code: `app.sync(app.jobs.get(7))`."""
        return self._portal.call(coroutine)

    def listen(self, queue: str = "default") -> Listening:
        """Wait for work of a queue in sync code: `with app.listen() as events: events.wait("30s")`.

        `queue`: reminders, and tasks without a queue of their own, use `default`. See `Listening`.
        """
        from duetime.api.listening import Listening

        return Listening(self, check_queue(queue))

    async def now(self) -> datetime:
        """The database's clock."""
        return await (await self.store()).now()

    async def _open_store(self) -> Store:
        """Return this event loop's store, opened on first use."""
        return await self._database.store()

    async def _perform(
        self, make: Callable[[Dialect], Statements], tx: Any = None, **how: bool
    ) -> Any:
        """Run statements in a transaction of their own, or in the caller's."""
        return await self._database.perform(make, tx, **how)

    def _unopened(self) -> Store:
        """A store for its statements alone."""
        return self._database.unopened()

    # Work

    def _make_worker(self, store: Store, **options: Unpack[WorkerArguments]) -> Worker:
        """Return a worker with the app's settings, changed by `options`."""
        from duetime.engine.worker import Worker

        settings = self._worker_settings(options)
        return Worker(
            store,
            self._known_tasks,
            settings,
            self._events,
            self._followers(settings),
            self._hook_registry.hooks,
            name=options.get("name"),
        )

    def _worker_settings(self, options: Mapping[str, Any]) -> Settings:
        """The app's settings, as a worker's options change them."""
        known = WorkerArguments.__annotations__
        if unknown := sorted(set(options) - set(known)):
            raise InvalidInput(
                f"A worker has no option {unknown[0]!r}. It has: {', '.join(known)}."
            )
        if options.get("name") is not None:
            check_name(options["name"], what="worker's name")
        changes = {option: value for option, value in options.items() if option != "name"}
        settings = change_settings(self.settings, changes)
        for queue in settings.queues:
            check_queue(queue)
        return settings

    def _followers(self, settings: Settings) -> list[MakeFollower]:
        """The features that follow the jobs of a worker."""
        from duetime.flows.follower import FlowFollower
        from duetime.reminders.follower import ReminderFollower
        from duetime.schedules.planner import Planner
        from duetime.stats.recorder import Recorder

        followers: list[MakeFollower] = [
            lambda worker: Planner(worker, self.schedules.declared, settings),
            lambda worker: ReminderFollower(worker, settings),
            FlowFollower,
            Recorder,
        ]
        if "_alerts" in vars(self):
            from duetime.alerts import AlertFollower

            alerts = list(self._alerts.declared.values())
            followers.append(lambda worker: AlertFollower(worker, alerts, settings))
        return followers

    @asynccontextmanager
    async def worker(self, **options: Unpack[WorkerArguments]) -> AsyncIterator[Worker]:
        """Run a worker beside your code: `async with app.worker(queues=["mail"]): …`.

        If the database cannot be reached, the block starts when it is back. At its end, the worker
        stops claiming, lets jobs finish within the grace time, and gives the rest back.
        """
        from duetime.api.starting import start_worker

        worker, running = await start_worker(self, **options)
        try:
            yield worker
        finally:
            worker.stop()
            await running

    def worker_thread(self, **options: Unpack[WorkerArguments]) -> WorkerThread:
        """Start a worker in a background thread, for hosts without an event loop."""
        from duetime.api.worker_thread import WorkerThread

        return WorkerThread(self, options)

    def lifespan(
        self, *, worker: bool = True, **options: Unpack[WorkerArguments]
    ) -> Callable[[Any], AbstractAsyncContextManager[None]]:
        """Return a lifespan for FastAPI or Starlette that runs a worker while the host runs."""

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

    def dashboard(
        self,
        *,
        authenticate: Callable[[Any], Awaitable[Visitor | None] | Visitor | None] | None = None,
        read_only: bool = False,
        allowed_hosts: Collection[str] | None = None,
    ) -> Callable[[Any, Any, Any], Awaitable[None]]:
        """Return the dashboard and the HTTP API as an ASGI application, to be mounted in your own.

        `api.mount("/duetime", app.dashboard(authenticate=visitor))`: `visitor(request)` returns a
        `Visitor` with a name and a scope, or None for nobody. Without it, people log in there.
        """
        from duetime.web.service import make_service

        return make_service(
            self, authenticate=authenticate, read_only=read_only, allowed_hosts=allowed_hosts
        )

    def serve(self, **options: Any) -> None:
        """Run the dashboard, the HTTP API and a worker in this process until it is stopped."""
        from duetime.web.serving import run

        run(self, **options)

    def testing(
        self,
        now: datetime | str | None = None,
        *,
        inline: bool = False,
        isolated: bool = True,
        max_extra_jobs: int = 1000,
    ) -> Opening:
        """A test world with its own tables and a clock that the test moves: `advance`, `drain`.

        `async with app.testing(now="2026-03-08T00:00Z") as world:`, or `with` in sync code. See
        `duetime.testing.open_world` for the options.
        """
        from duetime.testing import open_world

        return open_world(
            self, now=now, inline=inline, isolated=isolated, max_extra_jobs=max_extra_jobs
        )

    async def metrics(self) -> str:
        """Return the metrics of this process and of the database, in Prometheus' text format.

        Serve it with the content type `text/plain; version=0.0.4; charset=utf-8`. Requires
        `duetime[metrics]`.
        """
        return await self._metrics.text()

    async def examine(
        self, *, thresholds: Thresholds | None = None, timeout: Duration = "10s"
    ) -> list[Finding]:
        """Examine the database, the workers and what waits, as `duetime doctor` does.

        Returns every finding, including those with the level `ok`. Nothing is changed. A check
        that fails, or takes longer than `timeout`, is itself a finding.
        """
        from duetime.doctor import examine

        return await examine(self, thresholds=thresholds, timeout=timeout)

    async def close(self) -> None:
        """Close this event loop's connections. The app can be used again afterwards."""
        await self._database.close()
        if "_sender" in vars(self):
            for configured in self._sender.channels.values():
                await configured.channel.close()
        await self.webhook_task.close()
