"""A worker's life: it joins, keeps its lease, is fenced when it loses it, and leaves in order."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from duetime.domain.jobs.task import TaskDefinition
from duetime.engine.housekeeping import keep_pruning, keep_rescuing
from duetime.engine.lease import Heartbeat
from duetime.engine.loop import Dispatcher
from duetime.engine.loop_watch import LoopWatch
from duetime.engine.runners import LOST, STOPPING, Runners
from duetime.engine.services import OUTAGE_SECONDS, end_all, repeat
from duetime.errors import DatabaseCorrupted, DatabaseUnreachable, StorageError, TransientError
from duetime.storage.store import Beat
from duetime.telemetry.events import log_event
from duetime.telemetry.outage import Outage

log = logging.getLogger("duetime.worker")

_FALLBACK_SECONDS = 5.0
"""How often schedules that fell back to memory look for their table."""
_ROUND_SECONDS = 5.0
"""How long, within the grace, a stop waits for the rounds of services that are under way."""
_LAST_CALLS_SECONDS = 3.0
"""How long, beyond the grace, a stop waits for the database to take what is given back."""
_LAST_SECONDS = 0.25
"""How long a stop waits for what was told to end now."""


class Worker(Dispatcher):
    """One process's worker. `run` until `stop`; every job it holds is under its lease."""

    _damage: DatabaseCorrupted | None = None

    async def run(self) -> None:
        """Work until `stop`. Returns when everything held has ended or was given back.

        Raises `DatabaseCorrupted` if the database is: then nothing can be recorded or given back.
        """
        self._loop = asyncio.get_running_loop()
        self._loop_watch = LoopWatch(
            limit=self._options.block_limit.total_seconds(),
            pulse_every=self._watch_every,
            blocked=partial(self._events.event_loop_blocked, self.name),
            freed=partial(self._events.event_loop_unblocked, self.name),
        )
        self._runners = Runners(
            self._tasks,
            store=self._store,
            worker=self.name,
            concurrency=self._options.concurrency,
            ended=self._job_ended,
            started=self._job_started,
            late=self._admit_again,
            stuck=partial(self._events.job_stuck, self.name),
        )
        try:
            await self._join()
        except BaseException:
            await self._runners.close()
            raise
        stopping = asyncio.Event()
        services = [asyncio.create_task(service) for service in self._services(stopping)]
        for service in services:
            service.add_done_callback(self._service_ended)
        # To the last, also while we stop: until then handlers run under the lease.
        watching = asyncio.create_task(
            repeat("lease", self._watch_lease, stopping=asyncio.Event(), outage=Outage(self.name)),
            name="duetime-lease",
        )
        self.started.set()
        self.outage.worked("start")
        self._events.worker_started(self.name, self._worker_id, self._options.queues)
        try:
            await self._work_until_stopped()
        finally:
            stopping.set()
            given_back = 0
            try:
                given_back = await self._let_end(services)
            finally:
                # Whatever happened: a lease that is kept for nobody would keep its jobs for ever.
                watching.cancel()
                await self._leave(given_back)
        if self._damage is not None:
            raise self._damage

    def _services(self, stopping: asyncio.Event) -> list[Coroutine[Any, Any, None]]:
        store, options = self._store, self._options
        ends: Any = {"stopping": stopping, "outage": self.outage}
        return [
            repeat("housekeeping", self._keep_house, **ends),
            keep_rescuing(store, options, self._events, lambda: self._worker_id, **ends),
            keep_pruning(store, options, **ends),
            repeat("planner", self._plan, **ends),
            repeat("ticker", self._ticker.arm, **ends),
        ]

    async def _work_until_stopped(self) -> None:
        """Work until `stop`. A call that a database does not answer is then given a few seconds."""
        working = asyncio.create_task(self._work(), name="duetime-work")
        asked = asyncio.create_task(self._stop_asked.wait())
        try:
            await asyncio.wait([working, asked], return_when=asyncio.FIRST_COMPLETED)
            patience = 0.0 if self._stop_now else min(self._grace, _ROUND_SECONDS)
            await asyncio.wait([working], timeout=patience)
        finally:
            asked.cancel()
            if not working.done():
                # Perhaps in the middle of a claim.
                self._unsure = True
                await end_all([working], 0.0)
        if not working.cancelled():
            working.result()

    async def _work(self) -> None:
        try:
            while not self._stopping:
                self._check_lease()
                if self._fenced is not None:
                    await self._rejoin()
                else:
                    await self._step()
        except BaseException:
            self._unsure = True
            raise

    @property
    def _grace(self) -> float:
        return self._options.grace.total_seconds()

    def stop(self, *, now: bool = False) -> None:
        """Claim nothing more; finish what runs within the grace time, or now."""
        self._stopping = True
        self._stop_now = self._stop_now or now
        self._stop_asked.set()
        if now and self._calls_end is not None:
            self._calls_end = min(self._calls_end, self._loop.time() + _LAST_CALLS_SECONDS)
            for limit in self._calls:
                limit.reschedule(self._calls_end)
        if self.started.is_set():
            self._sleeper.interrupt()

    async def _join(self) -> None:
        """LISTEN first, then drain: nothing enqueued meanwhile is missed."""
        options = self._options
        asked = time.monotonic()
        self._worker_id = await self._store.register_worker(
            name=self.name,
            queues=options.queues,
            tasks={name: task_defaults(task) for name, task in self._tasks.items()},
            concurrency=options.concurrency,
            lease=options.lease,
        )
        if not self._applied:
            # Once: a worker that joins anew may be older than what has been deployed since.
            await self._apply_declared()
            self._applied = True
        self._limited = await self._read_limited()
        self._sleeper = await self._store.sleeper(self._worker_id)
        self._begin()
        self._heartbeat = Heartbeat(
            self._store.heart(),
            self._worker_id,
            lease=options.lease,
            since=asked,
            every=options.heartbeat,
            beaten=lambda beat: self._from_thread(self._beaten, beat),
            lost=lambda reason: self._from_thread(self._fence, reason),
            watch=self._loop_watch,
            damaged=lambda error: self._from_thread(self._is_damage, error),
        )
        self._heartbeat.start()

    async def _let_end(self, services: Sequence[asyncio.Task[None]]) -> int:
        """Let what runs end within the grace time; give the rest back, and return how many."""
        if self._damage is not None:
            await end_all(services, 0.0)
            self._runners.stop_all(LOST)
            await self._runners.drained(_LAST_SECONDS)
            return 0
        grace = 0.0 if self._stop_now else self._grace
        rounds = min(grace, _ROUND_SECONDS) if grace else _LAST_SECONDS
        ending = asyncio.create_task(end_all(services, rounds))
        self._events.worker_stopping(self.name, running=len(self._runners.running))
        deadline = time.monotonic() + grace
        self._calls_end = self._loop.time() + grace + _LAST_CALLS_SECONDS
        # Also if the database keeps us waiting by then.
        overdue = self._loop.call_later(grace, self._runners.stop_all, STOPPING)
        with suppress(DatabaseUnreachable):
            async with self._in_time():
                while self._giving_back or self._admitting:
                    await asyncio.gather(*self._giving_back, *self._admitting)
        await self._give_back(self._runners.take_back())
        flush_at = 0.0
        while not self._stop_now and self._runners.running and time.monotonic() < deadline:
            await self._runners.drained(0.05)
            if time.monotonic() >= flush_at and not await self._flush():
                flush_at = time.monotonic() + OUTAGE_SECONDS
        overdue.cancel()
        if self._stop_now and grace:
            for service in services:
                service.cancel()
        await ending
        self._runners.stop_all(STOPPING)
        await self._runners.drained(_LAST_SECONDS)
        await self._flush()
        unfinished = list(self._holdings)
        self._returning.clear()
        await self._give_back(unfinished)
        # Their lease runs out, and they are rescued; also those whose outcome was not recorded.
        self.left_behind = len(self._returning) + len(self._holdings.ended)
        if unfinished and not self.left_behind:
            # Claims whose last job was given back, after others of them had ended.
            await self._flush()
        with suppress(DatabaseUnreachable):
            async with self._in_time():
                await self._planner.kept()
        return len(unfinished)

    async def _leave(self, given_back: int) -> None:
        # Something runs only if we were cut off.
        self._runners.stop_all(STOPPING)
        await self._loop.run_in_executor(None, self._heartbeat.stop)
        try:
            if self._damage is None:
                async with self._in_time():
                    await self._store.remove_worker(self._worker_id)
        except StorageError as error:
            log_event(
                log,
                logging.WARNING,
                "worker_not_removed",
                "Worker %(worker)s could not remove its row as it stopped: %(error)s",
                worker=self.name,
                error=str(error),
            )
        await self._sleeper.close()
        await self._runners.close()
        self._events.worker_stopped(self.name, given_back=given_back)

    # Fencing

    def _from_thread(self, function: Any, *args: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def _beaten(self, beat: Beat) -> None:
        self._rank = beat.rank
        for job_id in beat.cancelled:
            self._runners.cancel(job_id)

    def _fence(self, reason: str) -> None:
        """Others may take our jobs now: stop every handler, and record nothing."""
        if self._fenced is None:
            self._fenced = reason
            self._events.worker_fenced(self.name, reason, held=len(self._holdings))
            # What had not begun is given back, if no rescuer comes first: it does not count.
            self._returning += self._runners.take_back()
            self._runners.stop_all(LOST)
            self._sleeper.interrupt()

    async def _rejoin(self) -> None:
        """Begin anew under another id. What ended before the fence is still offered: the
        database's fence decides."""
        self._heartbeat.stop_soon()
        await self._sleeper.close()
        # A claim may have been answered since.
        self._returning += self._runners.take_back()
        self._runners.stop_all(LOST)
        await self._runners.drained(1.0)
        while not self._stopping:
            try:
                await self._settle()
                self._holdings.forget()
                self._returning.clear()
                self._quarantined = None
                await self._join()
                self._fenced = None
                self._failures = 0
                self.outage.worked("worker")
                return
            except StorageError as error:
                await self._back_off(error)

    def _check_lease(self) -> None:
        if self._fenced is None and self._heartbeat.seconds_left <= 0:
            self._fence("the lease ran out")

    # A damaged database

    def _is_damage(self, error: BaseException) -> bool:
        if not isinstance(error, DatabaseCorrupted):
            return False
        if self._damage is None:
            self._damage = error
            self._events.database_corrupted(self.name, str(error))
            self.stop(now=True)
        return True

    def _service_ended(self, service: asyncio.Task[None]) -> None:
        if not service.cancelled() and (error := service.exception()) is not None:
            self._is_damage(error)

    # Housekeeping of this worker alone

    async def _watch_lease(self) -> float:
        """Asks no database, so that a hanging one cannot hold up the fence."""
        self._loop_watch.pulse()
        self._check_lease()
        return self._watch_every

    @property
    def _watch_every(self) -> float:
        return min(0.25, self._options.lease.total_seconds() / 10)

    async def _keep_house(self) -> float:
        if self._fenced is None:
            await self._give_back(self._runners.take_back(older_than=1.0))
            self._limited = await self._read_limited()
            if await self._store.unpark(
                list(self._tasks), self._options.queues, sparing=self._unfitting
            ):
                self._look = True
                self._sleeper.interrupt()
            await self._claim_quarantined()
        return 1.0

    # Schedules

    async def _apply_declared(self) -> None:
        """Store what the code declares; what is not to be stored ticks in memory."""
        stored = [schedule for schedule in self._declared if schedule.stored]
        memory = [schedule for schedule in self._declared if not schedule.stored]
        try:
            await self._planner.apply(stored)
        except StorageError as error:
            if not self._options.schedule_fallback or isinstance(error, TransientError):
                raise
            if not self._fallen_back:
                self._events.schedule_fallback_started(self.name, len(stored), str(error))
            self._fallen_back = True
            memory = list(self._declared)
        else:
            if self._fallen_back:
                self._events.schedule_fallback_ended(self.name, len(stored))
            self._fallen_back = False
        self._ticker.schedules = memory

    async def _plan(self) -> float:
        if not self._fallen_back:
            try:
                return await self._planner.repair()
            except StorageError as error:
                if not self._options.schedule_fallback or isinstance(error, TransientError):
                    raise
        await self._apply_declared()
        return _FALLBACK_SECONDS

    async def _read_limited(self) -> list[str]:
        limited = await self._store.limited_queues()
        return [queue for queue in self._options.queues if queue in limited]


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
