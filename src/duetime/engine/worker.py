"""A worker: claims what is due, runs it, records how it ended, and sleeps in between."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import msgspec

from duetime.domain.job import ClaimedJob, EndedJob
from duetime.domain.task import TaskDefinition
from duetime.engine.clock import DatabaseClock
from duetime.engine.heartbeat import Heartbeat
from duetime.engine.holdings import Holdings
from duetime.engine.housekeeping import prune_forever, rescue_forever
from duetime.engine.lanes import Lanes
from duetime.engine.runners import LOST, STOPPING, Runners
from duetime.engine.service import backoff, repeat
from duetime.errors import StorageError
from duetime.storage.store import Beat, Exchange, Sleeper, Store
from duetime.telemetry.events import Events

log = logging.getLogger("duetime.worker")

_NAPS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02)
_LINGER_SECONDS = 0.002
_BUSY_SECONDS = 0.05
"""Woken twice within this time: stay awake, so that producers need not wake us."""
_BUSY_NAP_SECONDS = 0.005
_STAGGER_SECONDS = 0.002


class WorkerOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a worker works. Every interval is a setting."""

    queues: tuple[str, ...] = ("default",)
    concurrency: int = 50
    batch: int = 500
    lease: timedelta = timedelta(seconds=30)
    heartbeat: timedelta = timedelta(seconds=10)
    poll: timedelta = timedelta(seconds=1)
    grace: timedelta = timedelta(seconds=30)
    rescue_every: timedelta = timedelta(seconds=2)
    prune_every: timedelta = timedelta(seconds=60)
    retention: Mapping[str, timedelta] = {}
    name: str | None = None


class Worker:
    """One process's worker. `run` until `stop`; every job it holds is under its lease."""

    def __init__(
        self,
        store: Store,
        tasks: Mapping[str, TaskDefinition],
        options: WorkerOptions,
        events: Events,
    ) -> None:
        self._store = store
        self._tasks = tasks
        self._options = options
        self._events = events
        self.name = options.name or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
        self._worker_id = 0
        self._rank = 0
        self._clock = DatabaseClock()
        self._holdings = Holdings()
        self._flushing: asyncio.Task[None] | None = None
        self._parking: set[asyncio.Task[None]] = set()
        self._returning: list[ClaimedJob] = []
        """Jobs that could not be given back yet."""
        self._limited: list[str] = []
        self._unsure = False
        """An exchange failed: what it did is unknown until settled."""
        self._failures = 0
        self._stopping = False
        self._stop_now = False
        self._fenced: str | None = None
        self._look = True
        self._quarantined: int | None = None
        self._quarantine_next = False
        self._lanes = Lanes(options.queues)
        self._claiming = asyncio.Lock()
        self.started = asyncio.Event()
        self.left_behind = 0
        """Jobs that could not be given back; their lease must run out first."""

    # Life

    async def run(self) -> None:
        """Work until `stop`. Returns when everything held has ended or was given back."""
        self._loop = asyncio.get_running_loop()
        self._runners = Runners(
            self._tasks,
            store=self._store,
            worker=self.name,
            concurrency=self._options.concurrency,
            ended=self._job_ended,
            started=self._events.job_started(self.name),
        )
        try:
            await self._join()
        except BaseException:
            await self._runners.close()
            raise
        services = [
            asyncio.create_task(repeat("lease", self._watch_lease)),
            asyncio.create_task(repeat("housekeeping", self._keep_house)),
            asyncio.create_task(rescue_forever(self._store, self._options, self._events)),
            asyncio.create_task(prune_forever(self._store, self._options)),
        ]
        self.started.set()
        self._events.worker_started(self.name, self._worker_id, self._options.queues)
        try:
            while not self._stopping:
                if self._fenced is not None:
                    await self._rejoin()
                else:
                    await self._step()
        finally:
            await _cancel_all(services)
            await self._leave()

    def stop(self, *, now: bool = False) -> None:
        """Claim nothing more; finish what runs within the grace time, or now."""
        self._stopping = True
        self._stop_now = self._stop_now or now
        if self.started.is_set():
            self._sleeper.interrupt()

    async def _join(self) -> None:
        """LISTEN first, then drain: nothing enqueued meanwhile is missed."""
        options = self._options
        self._worker_id = await self._store.register_worker(
            name=self.name,
            queues=options.queues,
            tasks={name: task_defaults(task) for name, task in self._tasks.items()},
            concurrency=options.concurrency,
            lease=options.lease,
        )
        self._limited = await self._read_limited()
        self._sleeper: Sleeper = await self._store.sleeper(self._worker_id)
        self._look = True
        self._look_ahead = False
        self._more = False
        self._last_wake = 0.0
        self._naps = 0
        self._heartbeat = Heartbeat(
            self._store.heart(),
            self._worker_id,
            lease=options.lease,
            every=options.heartbeat,
            beaten=lambda beat: self._from_thread(self._beaten, beat),
            lost=lambda reason: self._from_thread(self._fence, reason),
        )
        self._heartbeat.start()

    async def _leave(self) -> None:
        grace = 0.0 if self._stop_now else self._options.grace.total_seconds()
        self._events.worker_stopping(self.name, running=len(self._runners.running))
        await asyncio.gather(*self._parking)
        await self._give_back(self._runners.take_back())
        deadline = time.monotonic() + grace
        while not self._stop_now and self._runners.running and time.monotonic() < deadline:
            await self._runners.drained(0.05)
            await self._flush()
        self._runners.stop_all(STOPPING)
        await self._runners.drained(0.25)
        await self._flush()
        unfinished = list(self._holdings)
        self._returning.clear()
        await self._give_back(unfinished)
        # Their lease runs out, and they are rescued.
        self.left_behind = len(self._returning)
        await self._loop.run_in_executor(None, self._heartbeat.stop)
        try:
            await self._store.remove_worker(self._worker_id)
        except StorageError as error:
            log.warning("worker_not_removed", extra={"worker": self.name, "error": str(error)})
        await self._sleeper.close()
        await self._runners.close()
        self._events.worker_stopped(self.name, given_back=len(unfinished))

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
            self._runners.take_back()
            self._runners.stop_all(LOST)
            self._sleeper.interrupt()

    async def _rejoin(self) -> None:
        """Begin anew under another id. What ended before the fence is still offered: the
        database's fence decides."""
        await self._loop.run_in_executor(None, self._heartbeat.stop)
        await self._sleeper.close()
        # A claim may have been answered since.
        self._runners.take_back()
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
                return
            except StorageError as error:
                await self._back_off(error)

    # The loop

    async def _step(self) -> None:
        """Send what ended, claim what is due; or, if there is neither, sleep."""
        try:
            if self._unsure:
                await self._settle()
            for job_id in self._sleeper.cancelled_jobs():
                self._runners.cancel(job_id)
            if self._quarantine_next:
                self._quarantine_next = False
                await self._claim_quarantined()
            room = self._runners.room(2 * self._options.batch) if self._look else 0
            if room > 0:
                await self._linger(room)
                await self._exchange(min(room, self._options.batch))
            elif self._holdings.to_send:
                await self._exchange(0)
            else:
                await self._rest()
            self._failures = 0
        except StorageError as error:
            self._unsure = True
            self._look = True
            await self._back_off(error)

    async def _linger(self, room: int) -> None:
        # With work at hand, a small exchange can wait a moment and become a larger one.
        if self._runners.waiting and room < self._options.batch // 2:
            await asyncio.sleep(_LINGER_SECONDS)

    async def _exchange(self, want: int) -> None:
        """One round trip for both. While there is more than we can claim, the ends go beside."""
        if want and self._more:
            if self._holdings.to_send and self._flushing is None:
                self._flushing = asyncio.create_task(self._send(0), name="duetime-finish")
                self._flushing.add_done_callback(self._flushed)
            await self._send(want, finish=False)
        else:
            await self._await_flush()
            if self._unsure:
                await self._settle()
            await self._send(want)

    def _flushed(self, flushing: asyncio.Task[None]) -> None:
        self._flushing = None
        if not flushing.cancelled() and (error := flushing.exception()) is not None:
            self._unsure = True
            log.warning("finish_failed", extra={"worker": self.name, "error": str(error)})

    async def _await_flush(self) -> None:
        if self._flushing is not None:
            await asyncio.wait([self._flushing])

    async def _send(self, want: int, *, finish: bool = True) -> None:
        ended, closed = self._holdings.take() if finish else ([], [])
        look_ahead = self._look_ahead
        sent = time.monotonic()
        try:
            answer = await self._store.exchange(
                self._worker_id,
                ended=ended,
                closed=closed,
                lanes=self._lanes.in_turn() if want else (),
                want=want,
                look_ahead=want > 0 and look_ahead,
            )
        except BaseException:
            self._holdings.put_back(ended, closed)
            raise
        received = time.monotonic()
        if answer.now is not None:
            self._clock.set(answer.now, sent=sent, received=received)
        self._accept(answer.claimed, received)
        self._report(ended, answer.refused)
        if want:
            claimed = len(answer.claimed)
            if self._limited:
                claimed += await self._claim_limited(answer)
            await self._after_look(answer, claimed, want, looked_ahead=look_ahead)

    async def _claim_limited(self, answer: Exchange) -> int:
        """From limited queues only what the runners can take next: it counts as running."""
        held = sum(job.limited for job in self._holdings)
        more = await self._store.exchange(
            self._worker_id,
            limited=self._limited,
            want=max(0, self._options.concurrency - held),
            look_ahead=True,
        )
        self._accept(more.claimed, time.monotonic())
        times = [at for at in (answer.next_run_at, more.next_run_at) if at is not None]
        answer.next_run_at = min(times) if times else None
        return len(more.claimed)

    def _accept(self, jobs: Sequence[ClaimedJob], received: float) -> None:
        if self._fenced is not None:
            # Answered too late: these are no longer ours, and the rescuer takes them.
            return
        known: list[ClaimedJob] = []
        unknown: list[ClaimedJob] = []
        for job in jobs:
            self._holdings.add(job)
            (known if job.task in self._tasks else unknown).append(job)
        if known:
            self._events.jobs_claimed(self.name, known)
            self._runners.put(known, received=received)
        if unknown:
            self._park_soon(unknown)

    async def _after_look(
        self, answer: Exchange, claimed: int, want: int, *, looked_ahead: bool
    ) -> None:
        """Decide when to look again."""
        self._more = claimed >= want
        if self._more:
            self._lanes.raise_floors(answer.claimed)
            self._naps = 0
            self._look_ahead = False
            if self._sleeper.asleep:
                await self._sleeper.wake_up()
            return
        self._lanes.forget_floors()
        if not looked_ahead:
            # All that was due is claimed. Look once more, with an eye on what comes next.
            if self._sleeper.asleep:
                self._look_ahead = True
            elif claimed:
                # Busy: stay awake, so that producers need not wake us.
                await asyncio.sleep(_BUSY_NAP_SECONDS)
            elif await self._sleeper.fall_asleep(self._options.queues):
                self._look_ahead = True
                self._naps = 0
            else:
                await self._nap()
            return
        wait = self._options.poll.total_seconds()
        if answer.next_run_at is not None:
            wait = min(wait, self._clock.seconds_until(answer.next_run_at))
        if claimed:
            self._naps = 0
        if wait <= 0.0 or not self._sleeper.asleep:
            # It fell due since; or another worker is claiming it, or the listener was lost.
            self._look_ahead = self._sleeper.asleep
            await self._nap()
            return
        self._naps = 0
        self._look = False
        self._look_ahead = False
        if answer.next_run_at is not None and wait > 0.005:
            wait += min(self._rank, 5) * _STAGGER_SECONDS
        self._wake_at = time.monotonic() + wait

    async def _nap(self) -> None:
        self._naps += 1
        await asyncio.sleep(_NAPS[min(self._naps, len(_NAPS)) - 1])

    async def _rest(self) -> None:
        """Sleep until due, notified, or something ends here."""
        if self._look:
            # No room: a job must end before we look again.
            await self._sleeper.sleep(1.0)
            return
        reason = await self._sleeper.sleep(max(0.0, self._wake_at - time.monotonic()))
        now = time.monotonic()
        if reason == "interrupted" and now < self._wake_at:
            return
        self._look = True
        self._events.woken(self.name, reason)
        if reason == "notified":
            if now - self._last_wake < _BUSY_SECONDS:
                await self._sleeper.wake_up()
            self._last_wake = now

    # What ended

    def _job_ended(self, job: ClaimedJob, end: EndedJob | None) -> None:
        self._quarantine_next = self._quarantine_next or job.id == self._quarantined
        if not self._drop(job):
            return
        if end is not None:
            self._holdings.ended.append(end)
        if job.limited:
            self._look = True
        if len(self._holdings.ended) <= 1:
            self._sleeper.interrupt()

    def _report(self, ended: Sequence[EndedJob], refused: frozenset[int]) -> None:
        self._events.jobs_ended(self.name, [end for end in ended if end.job.id not in refused])
        for end in ended:
            if end.job.id in refused and not end.completed_before:
                self._events.job_refused(self.name, end)

    async def _flush(self) -> None:
        try:
            await self._settle()
        except StorageError as error:
            log.warning("flush_failed", extra={"worker": self.name, "error": str(error)})

    async def _settle(self) -> None:
        """Record what ended; idempotent, whatever became of an earlier try."""
        await self._await_flush()
        ended, closed = self._holdings.take()
        if ended or closed:
            try:
                refused = await self._store.settle(ended, closed)
            except BaseException:
                self._holdings.put_back(ended, closed)
                raise
            self._report(ended, refused)
        if self._returning:
            returning = self._returning[:]
            await self._store.release(returning)
            self._let_go(returning)
            del self._returning[: len(returning)]
        if self._unsure:
            async with self._claiming:
                await self._store.disown(self._worker_id, self._holdings.tokens)
            self._unsure = False

    async def _back_off(self, error: StorageError) -> None:
        self._failures += 1
        wait = backoff(self._failures)
        self._events.database_unreachable(self.name, str(error), wait)
        deadline = time.monotonic() + wait
        while time.monotonic() < deadline and not self._stopping and self._fenced is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    # Housekeeping of this worker alone

    async def _watch_lease(self) -> float:
        """Asks no database, so that a hanging one cannot hold up the fence."""
        if self._fenced is None and self._heartbeat.seconds_left <= 0:
            self._fence("the lease ran out")
        return min(0.25, self._options.lease.total_seconds() / 10)

    async def _keep_house(self) -> float:
        if self._fenced is None:
            await self._give_back(self._runners.take_back(older_than=1.0))
            self._limited = await self._read_limited()
            await self._store.unpark(list(self._tasks))
            await self._claim_quarantined()
        return 1.0

    async def _claim_quarantined(self) -> None:
        """One at a time: if it takes this worker down too, it takes nothing else with it."""
        if self._quarantined is None and self._runners.free and not self._stopping:
            self._quarantined = 0
            jobs: list[ClaimedJob] = []
            try:
                async with self._claiming:
                    jobs = await self._store.claim_quarantined(
                        self._worker_id, self._options.queues
                    )
                    self._accept(jobs, time.monotonic())
            finally:
                self._quarantined = jobs[0].id if jobs else None

    async def _read_limited(self) -> list[str]:
        limited = await self._store.limited_queues()
        return [queue for queue in self._options.queues if queue in limited]

    async def _give_back(self, jobs: Sequence[ClaimedJob]) -> None:
        if not jobs:
            return
        try:
            await self._store.release(jobs)
        except StorageError as error:
            self._return_later(jobs, error)
        else:
            self._let_go(jobs)

    def _park_soon(self, jobs: Sequence[ClaimedJob]) -> None:
        self._events.jobs_parked(self.name, jobs)
        names = ", ".join(sorted({job.task for job in jobs}))
        reason = f"worker {self.name} does not know the task {names}"
        parking = asyncio.create_task(self._park(jobs, reason))
        self._parking.add(parking)
        parking.add_done_callback(self._parking.discard)

    async def _park(self, jobs: Sequence[ClaimedJob], reason: str) -> None:
        try:
            await self._store.park(jobs, reason)
        except StorageError as error:
            self._return_later(jobs, error)
        else:
            self._let_go(jobs)

    def _return_later(self, jobs: Sequence[ClaimedJob], error: StorageError) -> None:
        """Still held, so that their claims stay open, and given back as soon as that works."""
        self._returning += jobs
        self._unsure = True
        log.warning(
            "give_back_failed",
            extra={"worker": self.name, "jobs": len(jobs), "error": str(error)},
        )

    def _let_go(self, jobs: Sequence[ClaimedJob]) -> None:
        """Hold these jobs no longer: they have left their claims. (Before that, closing a claim
        would lose them.)"""
        for job in jobs:
            self._drop(job)

    def _drop(self, job: ClaimedJob) -> bool:
        if job.id == self._quarantined:
            self._quarantined = None
        return self._holdings.drop(job)


async def _cancel_all(services: Sequence[asyncio.Task[None]]) -> None:
    """Cancel until all have ended: before Python 3.12 `wait_for`, which drivers use, may swallow
    a cancel that comes at the moment of its answer."""
    left = set(services)
    while left:
        for service in left:
            service.cancel()
        _, left = await asyncio.wait(left, timeout=0.1)


def task_defaults(task: TaskDefinition) -> dict[str, Any]:
    """What enqueues by plain SQL need to know of a task."""
    options = task.options
    return {
        "queue": options.queue,
        "priority": options.priority,
        "max_attempts": options.max_attempts,
        "timeout": options.timeout,
        "expires": options.expires,
    }
