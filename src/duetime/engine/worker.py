"""A worker's life: it joins, keeps its lease, is fenced when it loses it, and leaves in order."""

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

from duetime.domain.jobs.task import TaskDefinition
from duetime.engine.followers import Followers, MakeFollower, WorkerView
from duetime.engine.hooks import Hooks
from duetime.engine.lease import Heartbeat, Lease, LoopWatch
from duetime.engine.loop import Loop
from duetime.engine.options import WorkerOptions
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
from duetime.storage.store import Beat, Store
from duetime.telemetry.events import Events, log_event
from duetime.telemetry.outage import Outage

log = logging.getLogger("duetime.worker")

_ROUND_SECONDS = 5.0
"""How long, within the grace, a stop waits for the rounds of services that are under way."""
_LAST_SECONDS = 0.25
"""How long a stop waits for handlers that were requested to stop."""


class Worker:
    """One process's worker. `run` until `stop`; every job it holds is under its lease."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, TaskDefinition],
        options: WorkerOptions,
        events: Events,
        followers: Sequence[MakeFollower] = (),
        hooks: Hooks | None = None,
    ) -> None:
        self.name = options.name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._store = store
        self._tasks = tasks
        self._options = options
        self._events = events
        self._hooks = Hooks() if hooks is None else hooks
        view = WorkerView(self.name, store, events, tasks)
        self._followers = Followers([make(view) for make in followers])
        self._opened = False
        self.lease = Lease(self._lease_lost)
        self.stopping = Stopping(self._database_damaged)
        self.loop = Loop(view, options, self._followers, lease=self.lease, stopping=self.stopping)
        self.started = asyncio.Event()
        self.left_behind = 0
        """Jobs that could not be given back; their lease must run out first."""

    @property
    def outage(self) -> Outage:
        """Whoever waited for the database to start this worker sets its own."""
        return self.loop.outage

    @outage.setter
    def outage(self, outage: Outage) -> None:
        self.loop.outage = outage

    async def run(self) -> None:
        """Work until `stop`. Returns when everything held has ended or was given back.

        Startup hooks run once the worker has joined, before its first claim; shutdown hooks after
        its last handler. Raises `StartupFailed` if a startup hook fails.
        Raises `DatabaseCorrupted` if the database is: then nothing can be recorded or given back.
        """
        self._event_loop = asyncio.get_running_loop()
        self._watch = LoopWatch(
            limit=self._options.block_limit.total_seconds(),
            pulse_every=self._watch_every,
            blocked=partial(self._events.event_loop_blocked, self.name),
            freed=partial(self._events.event_loop_unblocked, self.name),
        )
        self.loop.open(self._hooks)
        try:
            await self._join()
        except BaseException:
            await self.loop.runners.close()
            raise
        # To the last, also while we stop: until then handlers run under the lease.
        watching = asyncio.create_task(
            repeat(
                Service("lease", self._watch_lease),
                stopping=asyncio.Event(),
                outage=Outage(self.name),
            ),
            name="duetime-lease",
        )
        try:
            await self._hooks.start()
        except BaseException:
            watching.cancel()
            await self._leave(0)
            raise
        ending = asyncio.Event()
        services = [
            asyncio.create_task(repeat(service, stopping=ending, outage=self.outage))
            for service in self._services()
        ]
        for service in services:
            service.add_done_callback(self._service_ended)
        self.started.set()
        self.outage.worked("start")
        self._events.worker_started(self.name, self._options.queues)
        try:
            await self._work_until_stopped()
        finally:
            ending.set()
            given_back = 0
            try:
                given_back = await self._let_end(services)
            finally:
                # Whatever happened: a lease that is kept for nobody would keep its jobs for ever.
                watching.cancel()
                try:
                    await self._leave(given_back)
                finally:
                    await self._hooks.stop()
        if self.stopping.damage is not None:
            raise self.stopping.damage

    def _services(self) -> Iterator[Service]:
        yield Service("housekeeping", self._keep_house)
        yield make_rescuer(self._store, self._options, self._events, lambda: self.lease.worker_id)
        prunes = [follower.prune for follower in self._followers]
        yield make_pruner(self._store, self._options, prunes)
        for follower in self._followers:
            yield Service(follower.name, follower.repair)
            yield from follower.services()

    async def _work_until_stopped(self) -> None:
        """Work until `stop`. A call that a database does not answer is then given a few seconds."""
        working = asyncio.create_task(self._work(), name="duetime-work")
        asked = asyncio.create_task(self.stopping.asked.wait())
        try:
            await asyncio.wait([working, asked], return_when=asyncio.FIRST_COMPLETED)
            patience = 0.0 if self.stopping.now else min(self._grace, _ROUND_SECONDS)
            await asyncio.wait([working], timeout=patience)
        finally:
            asked.cancel()
            if not working.done():
                # Perhaps in the middle of a claim.
                self.loop.unsure = True
                await end_all([working], 0.0)
        if not working.cancelled():
            working.result()

    async def _work(self) -> None:
        try:
            while not self.stopping:
                if self.lease.holds():
                    await self.loop.step()
                else:
                    await self._rejoin()
        except BaseException:
            self.loop.unsure = True
            raise

    @property
    def _grace(self) -> float:
        return self._options.grace.total_seconds()

    def stop(self, *, now: bool = False) -> None:
        """Claim nothing more; finish what runs within the grace time, or now."""
        self.stopping.ask(now=now)
        if self.started.is_set():
            self.loop.pace.sleeper.interrupt()

    async def _join(self) -> None:
        """LISTEN first, then drain: nothing enqueued meanwhile is missed."""
        options, lease = self._options, self.lease
        asked = time.monotonic()
        lease.worker_id = await self._store.register_worker(
            name=self.name,
            queues=options.queues,
            tasks={name: task_defaults(task) for name, task in self._tasks.items()},
            concurrency=options.concurrency,
            lease=options.lease,
        )
        if not self._opened:
            # Once: a worker that joins anew may be older than what has been deployed since.
            for follower in self._followers:
                await follower.open()
            self._opened = True
        await self.loop.read_limits()
        self.loop.pace.sleeper = await self._store.sleeper(lease.worker_id)
        self.loop.pace.restart()
        lease.heartbeat = Heartbeat(
            self._store.heart(),
            lease.worker_id,
            lease=options.lease,
            since=asked,
            every=options.heartbeat,
            beaten=lambda beat: self._from_thread(self._beaten, beat),
            lost=lambda reason: self._from_thread(lease.fence, reason),
            watch=self._watch,
            damaged=lambda error: self._from_thread(self.stopping.is_damage, error),
        )
        lease.heartbeat.start()

    async def _let_end(self, services: Sequence[asyncio.Task[None]]) -> int:
        """Let what runs end within the grace time; give the rest back, and return how many."""
        loop, runners, stopping = self.loop, self.loop.runners, self.stopping
        if stopping.damage is not None:
            await end_all(services, 0.0)
            runners.stop_all(LOST)
            await runners.drained(_LAST_SECONDS)
            return 0
        grace = 0.0 if stopping.now else self._grace
        rounds = min(grace, _ROUND_SECONDS) if grace else _LAST_SECONDS
        ending = asyncio.create_task(end_all(services, rounds))
        self._events.worker_stopping(self.name, running=len(runners.running))
        deadline = time.monotonic() + grace
        stopping.begin(grace)
        # Also if the database keeps us waiting by then.
        overdue = self._event_loop.call_later(grace, runners.stop_all, STOPPING)
        with suppress(DatabaseUnreachable):
            async with stopping.in_time():
                await loop.decided()
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
        await ending
        runners.stop_all(STOPPING)
        await runners.drained(_LAST_SECONDS)
        await self._flush()
        unfinished = list(loop.holdings)
        loop.returns.waiting.clear()
        await loop.returns.give_back(unfinished)
        # Their lease runs out, and they are rescued; also those whose outcome was not recorded.
        self.left_behind = len(loop.returns.waiting) + len(loop.holdings.ended)
        if unfinished and not self.left_behind:
            # Claims whose last job was given back, after others of them had ended.
            await self._flush()
        with suppress(DatabaseUnreachable):
            async with stopping.in_time():
                await self._followers.flush()
        return len(unfinished)

    async def _flush(self) -> bool:
        """Record what ended while it stops. False: the database did not take it."""
        try:
            async with self.stopping.in_time():
                await self.loop.settle()
        except StorageError as error:
            if not self.stopping.is_damage(error):
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

    async def _leave(self, given_back: int) -> None:
        # Something runs only if we were cut off.
        self.loop.runners.stop_all(STOPPING)
        await self._event_loop.run_in_executor(None, self.lease.heartbeat.stop)
        try:
            if self.stopping.damage is None:
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

    def _beaten(self, beat: Beat) -> None:
        self.loop.pace.rank = beat.rank
        for job_id in beat.cancelled:
            self.loop.runners.cancel(job_id)

    def _lease_lost(self, reason: str) -> None:
        """Others may take our jobs now: stop every handler, and record nothing."""
        self._events.worker_fenced(self.name, reason, held=len(self.loop.holdings))
        # What had not begun is given back, if no rescuer comes first: it does not count.
        self.loop.returns.waiting += self.loop.runners.take_back()
        self.loop.runners.stop_all(LOST)
        self.loop.pace.sleeper.interrupt()

    async def _rejoin(self) -> None:
        """Begin anew under another id. What ended before the fence is still offered: the
        database's fence decides."""
        loop = self.loop
        self.lease.heartbeat.stop_soon()
        await loop.pace.sleeper.close()
        # A claim may have been answered since.
        loop.returns.waiting += loop.runners.take_back()
        loop.runners.stop_all(LOST)
        await loop.runners.drained(1.0)
        while not self.stopping:
            try:
                await loop.settle()
                loop.forget()
                await self._join()
                self.lease.fenced = None
                loop.failures = 0
                self.outage.worked("worker")
                return
            except StorageError as error:
                await loop.back_off(error)

    # A damaged database

    def _database_damaged(self, error: DatabaseCorrupted) -> None:
        self._events.database_corrupted(self.name, str(error))
        self.stop(now=True)

    def _service_ended(self, service: asyncio.Task[None]) -> None:
        if not service.cancelled() and (error := service.exception()) is not None:
            self.stopping.is_damage(error)

    # Housekeeping of this worker alone

    async def _watch_lease(self) -> float:
        """Asks no database, so that a hanging one cannot hold up the fence."""
        self._watch.pulse()
        self.lease.holds()
        return self._watch_every

    @property
    def _watch_every(self) -> float:
        return min(0.25, self._options.lease.total_seconds() / 10)

    async def _keep_house(self) -> float:
        if self.lease.fenced is None:
            await self.loop.returns.give_back(self.loop.runners.take_back(older_than=1.0))
            await self.loop.read_limits()
            if await self._store.unpark(
                list(self._tasks), self._options.queues, sparing=self.loop.returns.left
            ):
                self.loop.pace.look = True
                self.loop.pace.sleeper.interrupt()
            await self.loop.claim_quarantined()
        return 1.0


def task_defaults(task: TaskDefinition) -> dict[str, Any]:
    """What enqueues by plain SQL need to know of a task."""
    options = task.options
    return {
        "queue": options.queue,
        "priority": options.priority,
        "max_attempts": options.max_attempts,
        "timeout": options.timeout,
        "expires": options.expires,
        "max_args_bytes": min(options.max_args_bytes, 2**31 - 1),
    }
