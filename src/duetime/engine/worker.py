"""A worker's life: it registers, keeps its lease, is fenced if it loses it, and shuts down."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.task import TaskDefinition
from duetime.engine.followers import Followers, MakeFollower, WorkerView
from duetime.engine.hooks import Hooks
from duetime.engine.lease import Heartbeat, Lease, LoopWatch
from duetime.engine.loop import Loop
from duetime.engine.polling import Check, Poller
from duetime.engine.runners import LOST, STOPPING
from duetime.engine.services import (
    OUTAGE_SECONDS,
    Service,
    end_all,
    make_pruner,
    make_rescuer,
    repeat,
)
from duetime.engine.stopping import Stopping
from duetime.errors import DatabaseCorrupted, DatabaseUnreachable, StorageError
from duetime.interpreter import frequent_switches
from duetime.settings import Settings
from duetime.storage.store import Beat, PollResult, Store
from duetime.telemetry.events import Events, Outage, log_event
from duetime.telemetry.tally import WorkerState

log = logging.getLogger("duetime.worker")

_ROUND_SECONDS = 5.0
"""How long, within the grace time, a stop waits for services in the middle of a round."""
_CANCEL_SECONDS = 0.25
"""How long a stop waits for handlers that were cancelled."""


class Worker:
    """Runs jobs from `run` until `stop`. Every job that it holds is under its lease."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, TaskDefinition],
        settings: Settings,
        events: Events,
        followers: Sequence[MakeFollower] = (),
        hooks: Hooks | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self.name = name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._store = store
        self._tasks = tasks
        self._settings = settings
        self._events = events
        self._hooks = Hooks() if hooks is None else hooks
        view = WorkerView(self.name, store, events, tasks)
        self._followers = Followers([make(view) for make in followers])
        self._opened = False
        self.lease = Lease(self._lease_lost)
        self.stopping = Stopping(self._database_corrupted)
        self._poller = Poller(self._poll)
        self.loop = Loop(
            view,
            settings,
            self._followers,
            lease=self.lease,
            stopping=self.stopping,
            poller=self._poller,
        )
        self.started = asyncio.Event()
        self.left_behind = 0
        """Jobs that could not be given back. They are rescued when the lease runs out."""

    @property
    def outage(self) -> Outage:
        """Set by callers that had to wait for the database before they could start the worker."""
        return self.loop.outage

    @outage.setter
    def outage(self, outage: Outage) -> None:
        self.loop.outage = outage

    async def run(self) -> None:
        """Run jobs until `stop`. Returns when every job has finished or was given back.

        Startup hooks run after the worker has registered and before its first claim; shutdown
        hooks run after its last handler. Raises `StartupFailed` if a startup hook fails, and
        `DatabaseCorrupted` if the database is: then nothing can be recorded or given back.
        """
        self._event_loop = asyncio.get_running_loop()
        self._watch = LoopWatch(
            limit=self._settings.block_limit.total_seconds(),
            pulse_every=self._watch_every,
            blocked=partial(self._events.event_loop_blocked, self.name),
            freed=partial(self._events.event_loop_unblocked, self.name),
        )
        self.loop.open(self._hooks)
        try:
            await self._register()
        except BaseException:
            await self.loop.runners.close()
            raise
        self._watch_due = time.monotonic()
        # Until the very end, also while stopping: handlers run under the lease until then.
        self._watch_lease()
        try:
            await self._hooks.start()
        except BaseException:
            self._watching.cancel()
            await self._unregister(0)
            raise
        services_stop = asyncio.Event()
        services = [
            asyncio.create_task(
                repeat(service, stopping=services_stop, outage=self.outage, poller=self._poller)
            )
            for service in self._services()
        ]
        for service in services:
            service.add_done_callback(self._service_stopped)
        self.started.set()
        self.outage.worked("start")
        self._events.worker_started(self.name, self._settings.queues, self._state)
        try:
            with frequent_switches:
                await self._run_loop_until_stopped()
        finally:
            self.loop.takes_runs = False
            services_stop.set()
            self._poller.stop()
            given_back = 0
            try:
                given_back = await self._shut_down(services)
            finally:
                # Whatever happened: a lease that nobody needs would hold its jobs forever.
                self._watching.cancel()
                try:
                    await self._unregister(given_back)
                finally:
                    await self._hooks.stop()
        if self.stopping.corruption is not None:
            raise self.stopping.corruption

    def _services(self) -> Iterator[Service]:
        yield Service("housekeeping", self._keep_house, sees=self._has_to_keep_house)
        yield make_rescuer(self._store, self._settings, self._events, lambda: self.lease.worker_id)
        prunes = [follower.prune for follower in self._followers]
        yield make_pruner(self._store, self._settings, prunes)
        for follower in self._followers:
            yield follower.repairing()
            yield from follower.services()

    async def _run_loop_until_stopped(self) -> None:
        """Run the loop until `stop`. Then the database has seconds to answer its last call."""
        looping = asyncio.create_task(self._run_loop(), name="duetime-work")
        stop_requested = asyncio.create_task(self.stopping.requested.wait())
        try:
            await asyncio.wait([looping, stop_requested], return_when=asyncio.FIRST_COMPLETED)
            timeout = 0.0 if self.stopping.now else min(self._grace, _ROUND_SECONDS)
            await asyncio.wait([looping], timeout=timeout)
        finally:
            stop_requested.cancel()
            if not looping.done():
                # Perhaps in the middle of a claim.
                self.loop.unsure = True
                await end_all([looping], 0.0)
        if not looping.cancelled():
            looping.result()

    async def _run_loop(self) -> None:
        try:
            while not self.stopping.requested.is_set():
                if self.lease.holds():
                    await self.loop.step()
                else:
                    await self._register_again()
        except BaseException:
            self.loop.unsure = True
            raise

    @property
    def _grace(self) -> float:
        return self._settings.grace.total_seconds()

    @property
    def is_running(self) -> bool:
        """Whether it claims jobs: it has started, holds its lease, and was not asked to stop. Any
        thread may read it."""
        return (
            self.started.is_set()
            and not self.stopping.requested.is_set()
            and self.lease.fenced is None
            and self.lease.heartbeat.is_beating
            and self.lease.heartbeat.seconds_left > 0
        )

    def is_idle_for(self, job: NewJob) -> bool:
        """Whether it runs on this event loop and has nothing to do but this job."""
        return (
            self.is_running
            and self._event_loop is asyncio.get_running_loop()
            and self.loop.is_idle_for(job)
        )

    @property
    def is_stuck(self) -> bool:
        """Whether its event loop has been blocked for so long that it gives up its lease. May be
        read from any thread."""
        return self.started.is_set() and self._watch.is_blocked

    def stop(self, *, now: bool = False) -> None:
        """Claim no more jobs; let those that run finish within the grace time, or stop them now."""
        self.stopping.request(now=now)
        if self.started.is_set():
            self.loop.pace.sleeper.interrupt()

    async def _register(self) -> None:
        """Register and start the heartbeat. LISTEN comes first, so that no enqueue is missed."""
        settings, lease = self._settings, self.lease
        since = time.monotonic()
        lease.worker_id = await self._store.register_worker(
            name=self.name,
            queues=settings.queues,
            tasks={name: task_defaults(task) for name, task in self._tasks.items()},
            concurrency=settings.concurrency,
            lease=settings.lease,
        )
        if not self._opened:
            # Only once: a worker that registers again may be older than the current deployment.
            for follower in self._followers:
                await follower.open()
            self._opened = True
        await self.loop.read_limits()
        self.loop.pace.sleeper = await self._store.sleeper(
            lease.worker_id, notified=self._events.tally.notified
        )
        self.loop.pace.restart()
        lease.heartbeat = Heartbeat(
            self._store.heart(),
            lease.worker_id,
            lease=settings.lease,
            since=since,
            every=settings.heartbeat,
            renewed=lambda beat: self._from_thread(self._lease_renewed, beat),
            lost=lambda reason: self._from_thread(lease.fence, reason),
            watch=self._watch,
            corrupted=lambda error: self._from_thread(self.stopping.on_corruption, error),
        )
        lease.heartbeat.start()

    async def _shut_down(self, services: Sequence[asyncio.Task[None]]) -> int:
        """Let running jobs finish within the grace time; give the rest back, return how many."""
        loop, runners, stopping = self.loop, self.loop.runners, self.stopping
        if stopping.corruption is not None:
            await end_all([*services, *self._poller.close()], 0.0)
            runners.stop_all(LOST)
            await runners.drained(_CANCEL_SECONDS)
            return 0
        grace = 0.0 if stopping.now else self._grace
        rounds = min(grace, _ROUND_SECONDS) if grace else _CANCEL_SECONDS
        services_end = asyncio.create_task(end_all(services, rounds))
        self._events.worker_stopping(self.name, running=len(runners.running))
        deadline = time.monotonic() + grace
        stopping.begin(grace)
        # A timer, since we may be waiting for the database by then.
        overdue = self._event_loop.call_later(grace, runners.stop_all, STOPPING)
        with suppress(DatabaseUnreachable):
            async with stopping.in_time():
                await loop.wait_for_decisions()
        await loop.returns.give_back(runners.take_back())
        flush_at = 0.0
        while not stopping.now and runners.running and time.monotonic() < deadline:
            await runners.drained(0.05)
            if time.monotonic() >= flush_at and not await self._flush():
                flush_at = time.monotonic() + OUTAGE_SECONDS
        overdue.cancel()
        if stopping.now and grace:
            for service in services:
                service.cancel()
        await services_end
        if polling := self._poller.close():
            await end_all(polling, _CANCEL_SECONDS if stopping.now else rounds)
        runners.stop_all(STOPPING)
        await runners.drained(_CANCEL_SECONDS)
        await self._flush()
        unfinished = list(loop.holdings)
        loop.returns.waiting.clear()
        await loop.returns.give_back(unfinished)
        # They are rescued when the lease runs out, like jobs whose outcome was not recorded.
        self.left_behind = len(loop.returns.waiting) + len(loop.holdings.finished)
        if unfinished and not self.left_behind:
            # Close the claims whose last job was given back after others had finished.
            await self._flush()
        with suppress(DatabaseUnreachable):
            async with stopping.in_time():
                await self._followers.flush()
                await self._followers.close()
        return len(unfinished)

    async def _flush(self) -> bool:
        """Record finished jobs while stopping, and stop cancelled ones. Returns whether that
        succeeded."""
        try:
            async with self.stopping.in_time():
                await self.loop.follow_cancellations()
                await self.loop.flush()
        except StorageError as error:
            if not self.stopping.on_corruption(error):
                log_event(
                    log,
                    logging.WARNING,
                    "flush_failed",
                    "Worker %(worker)s could not record finished jobs while it stops: %(error)s",
                    worker=self.name,
                    error=str(error),
                )
            return False
        return True

    async def _unregister(self, given_back: int) -> None:
        # Handlers still run only if the shutdown was interrupted.
        self.loop.runners.stop_all(STOPPING)
        await self._event_loop.run_in_executor(None, self.lease.heartbeat.stop)
        try:
            if self.stopping.corruption is None:
                async with self.stopping.in_time():
                    await self._store.remove_worker(self.lease.worker_id)
        except StorageError as error:
            log_event(
                log,
                logging.WARNING,
                "worker_not_removed",
                "Worker %(worker)s could not remove its row as it stopped: %(error)s",
                worker=self.name,
                error=str(error),
            )
        await self.loop.pace.sleeper.close()
        await self.loop.runners.close()
        self._events.worker_stopped(self.name, given_back=given_back)

    # Fencing

    def _from_thread(self, function: Any, *args: Any) -> None:
        if not self._event_loop.is_closed():
            self._event_loop.call_soon_threadsafe(function, *args)

    def _lease_renewed(self, beat: Beat) -> None:
        self.loop.pace.rank, self.loop.pace.fleet = beat.rank, beat.fleet
        for job_id in beat.cancelled:
            self.loop.runners.cancel(job_id)

    def _lease_lost(self, reason: str) -> None:
        """Other workers may rescue our jobs now: stop every handler, and record nothing."""
        self._events.worker_fenced(self.name, reason, held=len(self.loop.holdings))
        # Jobs that had not started are given back, so that their attempt does not count.
        self.loop.returns.waiting += self.loop.runners.take_back()
        self.loop.runners.stop_all(LOST)
        self.loop.pace.sleeper.interrupt()

    async def _register_again(self) -> None:
        """Register under a new id after the lease was lost. Jobs that finished before that are
        still sent to the database, whose fence decides whether they count."""
        loop = self.loop
        self.lease.heartbeat.stop_soon()
        await loop.pace.sleeper.close()
        # A claim may have been answered since the lease was lost.
        loop.returns.waiting += loop.runners.take_back()
        loop.runners.stop_all(LOST)
        await loop.runners.drained(1.0)
        while not self.stopping.requested.is_set():
            try:
                await loop.flush()
                loop.forget()
                await self._register()
                self.lease.fenced = None
                loop.failures = 0
                self.outage.worked("worker")
                return
            except StorageError as error:
                await loop.back_off(error)

    # A corrupted database

    def _database_corrupted(self, error: DatabaseCorrupted) -> None:
        self._events.database_corrupted(self.name, str(error))
        self.stop(now=True)

    def _service_stopped(self, service: asyncio.Task[None]) -> None:
        if not service.cancelled() and (error := service.exception()) is not None:
            self.stopping.on_corruption(error)

    # Housekeeping of this worker alone

    def _watch_lease(self) -> None:
        """Makes no database call, so that a hanging database cannot delay the fence. A timer and
        not a service: it is what an idle worker does most often."""
        self._watching = self._event_loop.call_later(self._watch_every, self._watch_lease)
        now = time.monotonic()
        late = now - self._watch_due
        self._watch.pulse(late)
        self._events.tally.loop_lagged(late)
        self._watch_due = now + self._watch_every
        self.lease.holds()

    @property
    def _watch_every(self) -> float:
        return min(0.25, self._settings.lease.total_seconds() / 10)

    def _state(self) -> WorkerState:
        runners = self.loop.runners
        return WorkerState(
            running=len(runners.running),
            waiting=len(runners.waiting),
            concurrency=self._settings.concurrency,
            listening=self.loop.pace.sleeper.listening,
        )

    async def _poll(self, checks: Sequence[Check]) -> tuple[PollResult, list[Any]]:
        result, answers = await self._store.poll(
            self._settings.queues,
            list(self._tasks),
            sparing=self.loop.returns.parked,
            checks=[check() for check in checks],
            ahead=not self.loop.pace.backlog,
        )
        self.loop.set_limited(result.limited)
        return result, answers

    def _has_to_keep_house(self, result: PollResult) -> bool:
        self._polled = result
        return self.lease.fenced is None and (
            result.parked or result.quarantined or bool(self.loop.runners.waiting)
        )

    async def _keep_house(self) -> float:
        loop, seen = self.loop, self._polled
        await loop.returns.give_back(loop.runners.take_back(older_than=1.0))
        if seen.parked and await self._store.unpark(
            list(self._tasks), self._settings.queues, sparing=loop.returns.parked
        ):
            loop.pace.should_claim = True
            loop.pace.sleeper.interrupt()
        if seen.quarantined:
            await loop.claim_quarantined()
        return 1.0


def task_defaults(task: TaskDefinition) -> dict[str, Any]:
    """The defaults of a task that an enqueue by plain SQL needs."""
    options = task.options
    return {
        "queue": options.queue,
        "priority": options.priority,
        "max_attempts": options.max_attempts,
        "timeout": options.timeout,
        "expires": options.expires,
        "max_args_bytes": min(options.max_args_bytes, 2**31 - 1),
        "flow": options.flow or None,
    }
