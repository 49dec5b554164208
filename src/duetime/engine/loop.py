"""A worker's loop: record finished jobs, claim due ones, and sleep in between."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from functools import partial
from random import uniform

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob, NewJob
from duetime.domain.jobs.outcome import NOT_STORED
from duetime.domain.reasons import Reason
from duetime.engine.context import Claimant
from duetime.engine.executor import mark_completed
from duetime.engine.followers import Follower, Followers, WorkerView
from duetime.engine.holdings import Holdings
from duetime.engine.hooks import Hooks
from duetime.engine.lanes import Lanes
from duetime.engine.lease import Lease
from duetime.engine.pace import Pace
from duetime.engine.polling import Poller
from duetime.engine.returns import Returns
from duetime.engine.runners import Runners
from duetime.engine.services import OUTAGE_SECONDS, backoff
from duetime.engine.stopping import Stopping
from duetime.errors import (
    DataRejected,
    StorageError,
    TransactionConflict,
    TransientError,
)
from duetime.settings import Settings
from duetime.storage.store import Exchange
from duetime.telemetry.events import Outage, log_event

log = logging.getLogger("duetime.worker")

_LINGER_SECONDS = 0.002
"""While handlers have work, a small exchange waits this long to become a larger one."""
_RETRY_FOLLOWER_AFTER = timedelta(seconds=5)
"""When a job is claimed again after a bug in a follower."""
_RECONCILE_AGAIN_SECONDS = 60.0
"""When a broken connection's claims are released once more. The claim may still wait for a lock in
the database and be made at any later time."""


class Loop:
    """Moves jobs between the store and the runners, under the worker's lease."""

    runners: Runners

    def __init__(
        self,
        worker: WorkerView,
        settings: Settings,
        followers: Followers,
        *,
        lease: Lease,
        stopping: Stopping,
        poller: Poller,
    ) -> None:
        self._worker = worker.name
        self._store = worker.store
        self._tasks = worker.tasks
        self._events = worker.events
        self._settings = settings
        self._followers = followers
        self._followed_tasks = followers.tasks
        self._lease = lease
        self._stopping = stopping
        self._poller = poller
        self._lanes = Lanes(settings.queues)
        self._log_started = worker.events.job_started(worker.name)
        self.holdings = Holdings()
        self.pace = Pace(worker.name, settings, worker.events)
        self.returns = Returns(worker, self.holdings, followers, stopping, failed=self._call_failed)
        self.outage = Outage(worker.name)
        self._limited: list[str] = []
        """The worker's queues that have limits."""
        self._limited_left = False
        """The last claim took as many of their jobs as the runners could: more may be due."""
        self.unsure = False
        """A call failed, so its effect is unknown until the next `flush`."""
        self.takes_runs = True
        """Whether runs may be handed over to it as they are enqueued; not once it has stopped."""
        self._refusal: StorageError | None = None
        """Why a database that could be reached refused the last call."""
        self.failures = 0
        self._reconcile_at = math.inf
        """When to release again the claims that this worker does not know of."""
        self._recording: asyncio.Task[None] | None = None
        """Records finished jobs while the loop claims."""
        self._recorded: list[FinishedJob] = []
        """Jobs whose handlers have recorded their completion, since the event loop's last turn:
        those that one transaction completed are reported together."""
        self._gating: set[asyncio.Task[None]] = set()
        """Followers that decide which claimed jobs start."""
        self._quarantined: ClaimedJob | None = None
        self._quarantine_next = False
        self._claiming = asyncio.Lock()

    def open(self, hooks: Hooks) -> None:
        """Make the runners, on the running event loop."""
        self.runners = Runners(
            self._tasks,
            store=self._store,
            worker=self._worker,
            concurrency=self._settings.concurrency,
            started=self._job_started,
            finished=self._job_finished,
            freed=self._runner_freed,
            too_late=self._missed_start,
            stuck=partial(self._events.job_stuck, self._worker),
            hooks=hooks,
            holds_lease=self._lease.holds,
            hand_over=self.hand_over,
            log_lines=self._settings.log_lines,
        )

    async def step(self) -> None:
        """Record finished jobs and claim due ones. Sleep if there is neither."""
        try:
            if self.unsure or time.monotonic() >= self._reconcile_at:
                await self._reconcile()
            await self.follow_cancellations()
            if self._quarantine_next:
                self._quarantine_next = False
                await self.claim_quarantined()
            if self.pace.look_ahead and self.holdings.finished:
                # Somebody may wait for its result, and need not wait for what we read next.
                await self._claim_and_record(0)
                await asyncio.sleep(0)
            if self._limited_left and self._room_for_limited:
                self.pace.should_claim = True
            room = self.runners.room(2 * self._settings.batch) if self.pace.should_claim else 0
            if room > 0:
                await self._linger(room)
                await self._claim_and_record(min(room, self._settings.batch))
            elif self.holdings.finished or self.holdings.closed:
                await self._linger(len(self.holdings.finished))
                await self._claim_and_record(0)
            elif self.pace.should_poll:
                await self._poll()
            else:
                await self.pace.sleep()
            if self.failures:
                self.failures = 0
                self.outage.worked("worker")
        except StorageError as error:
            self.unsure = True
            self.pace.should_claim = True
            if isinstance(error, TransientError) or self._refusal is not None:
                self._refusal = None
                await self.back_off(error)
            else:
                self._refusal = error

    async def follow_cancellations(self) -> None:
        """Cancel the handlers of jobs that were cancelled since the last poll."""
        for job_id in await self.pace.sleeper.cancelled_jobs():
            self.runners.cancel(job_id)

    async def _poll(self) -> None:
        """Check whether something is due after all, as a notification may have been lost. It is
        cheaper than a claim, and one transaction with what others check."""
        seen = await self._poller.request(0.0)
        if seen is None:
            return
        self.pace.clock.set(seen.result.now, sent=seen.sent, received=seen.received)
        self.pace.after_poll(seen.result.next_run_at)

    async def _linger(self, size: int) -> None:
        if self.runners.waiting and size < self._settings.batch // 2:
            await asyncio.sleep(_LINGER_SECONDS)

    async def _claim_and_record(self, want: int) -> None:
        """Do both in one round trip. During a backlog, record on a second connection meanwhile."""
        if want and self.pace.backlog:
            if self._recording is None and (self.holdings.finished or self.holdings.closed):
                self._recording = asyncio.create_task(self._exchange(0), name="duetime-finish")
                self._recording.add_done_callback(self._recording_done)
            await self._exchange(want, record=False)
            return
        if self._recording is not None:
            await asyncio.wait([self._recording])
        if not self.unsure:
            await self._exchange(want)

    def _recording_done(self, recording: asyncio.Task[None]) -> None:
        self._recording = None
        error = None if recording.cancelled() else recording.exception()
        if error is not None and not self._call_failed(error):
            log_event(
                log,
                logging.WARNING,
                "finish_failed",
                "Worker %(worker)s could not record finished jobs and tries again: %(error)s",
                worker=self._worker,
                error=str(error),
            )

    async def _exchange(self, want: int, *, record: bool = True) -> None:
        """Record finished jobs and claim up to `want` due ones, in one round trip."""
        pace = self.pace
        early, pace.claim_early = pace.claim_early and want > 0, False
        if early:
            # In a call of its own: the answer to a claim arrives long after its clock was read.
            asked = time.monotonic()
            moment, first = await self._store.next_run_at(self._settings.queues)
            read = time.monotonic()
            if self._is_taken(first, moment, record=record):
                pace.clock.set(moment, sent=asked, received=read)
                await pace.after_claim(first, claimed=False, looked_ahead=True, early=True)
                return
        if self._stopping.requested.is_set() or self._lease.fenced is not None:
            # Since this step began: jobs claimed now would be given back at once, or lost.
            want = 0
        if early:
            # Others wake for the same moment. If the first one took all, it would start them one
            # after another while the others have nothing to do.
            want = min(want, max(self.runners.soon, want // pace.fleet))
        finished, closed = self.holdings.take_finished() if record else ([], [])
        look_ahead = pace.look_ahead or early
        sent = time.monotonic()
        try:
            answer = await self._store.exchange(
                self._lease.worker_id,
                finished=finished,
                closed=closed,
                lanes=self._lanes.in_turn() if want else (),
                want=want,
                look_ahead=want > 0 and look_ahead,
                lead=pace.lead if early else 0.0,
                # What a few claims take is started sooner than one waits for its turn.
                in_turn=pace.backlog and want >= self._settings.batch,
            )
        except BaseException:
            self.holdings.put_back(finished, closed)
            raise
        received = time.monotonic()
        if want:
            self._events.tally.claim_answered(len(answer.claimed), received - sent)
        if answer.now is not None:
            pace.clock.set(answer.now, sent=sent, received=received)
            if early and answer.claimed:
                received = _set_start_times(
                    answer.claimed, moment, read=read, sent=sent, received=received
                )
        if answer.lease_lost:
            self._lease.fence("the lease had run out")
        if answer.claimed:
            self._accept(answer.claimed, received)
        if finished:
            self._report(finished, answer)
        if want:
            claimed = len(answer.claimed)
            self._limited_left = False
            if self._limited and self._lease.fenced is None:
                claimed += await self._claim_limited(answer)
            pace.backlog = claimed >= want and not early
            if pace.backlog:
                self._lanes.raise_floors(answer.claimed)
            else:
                self._lanes.reset_floors()
            await pace.after_claim(
                answer.next_run_at, claimed=claimed > 0, looked_ahead=look_ahead, early=early
            )

    def _is_taken(self, first: datetime | None, moment: datetime, *, record: bool) -> bool:
        """Whether others were faster, and there is nothing else to do in an exchange. In a large
        fleet that is so for most who wake for the same jobs: a claim would cost them a multiple."""
        if self._limited or (record and (self.holdings.finished or self.holdings.closed)):
            return False
        return first is None or (first - moment).total_seconds() > self.pace.lead

    async def _claim_limited(self, answer: Exchange) -> int:
        """Claim from limited queues only what the runners can take next: it counts as running, and
        as part of the rate."""
        want = self._room_for_limited
        more = await self._store.exchange(
            self._lease.worker_id, limited=self._limited, want=want, look_ahead=True
        )
        self._limited_left = len(more.claimed) >= want
        self._accept(more.claimed, time.monotonic())
        times = [at for at in (answer.next_run_at, more.next_run_at) if at is not None]
        answer.next_run_at = min(times) if times else None
        return len(more.claimed)

    @property
    def _room_for_limited(self) -> int:
        held = sum(job.limited for job in self.holdings)
        return max(0, self._settings.concurrency - held - self.runners.occupied)

    # Claimed jobs

    def _accept(self, jobs: Sequence[ClaimedJob], received: float) -> None:
        if not self._lease.holds():
            # The answer came too late: the jobs may not start here.
            self.returns.give_back_soon(jobs)
            return
        self.holdings.add(jobs)
        self._events.jobs_claimed(self._worker, jobs)
        if any(name not in self._tasks for name in {job.task for job in jobs}):
            self.returns.park_unknown([job for job in jobs if job.task not in self._tasks])
            jobs = [job for job in jobs if job.task in self._tasks]
        free, gated = self._followers.split(jobs)
        if free:
            self.runners.put(free, received=received)
        for follower, followed in gated.items():
            self._gate_soon(follower, followed, received)

    def _gate_soon(self, follower: Follower, jobs: Sequence[ClaimedJob], received: float) -> None:
        gating = asyncio.create_task(self._gate(follower, _Gate(self, jobs, received)))
        self._gating.add(gating)
        gating.add_done_callback(self._gating.discard)

    async def _gate(self, follower: Follower, gate: _Gate) -> None:
        """Have a follower decide which jobs start. Those without a decision are given back."""
        try:
            await follower.before_start(list(gate.undecided.values()), gate.received, gate)
            if gate.undecided:
                raise RuntimeError(f"{follower.name} did not decide on {len(gate.undecided)} jobs")
        except Exception as error:  # noqa: BLE001 -- whatever it was, the jobs are given back.
            undecided = [job for job in gate.undecided.values() if self.holdings.holds(job)]
            now = self.pace.clock.now()
            if not isinstance(error, StorageError) and now is not None:
                # It is likely to happen again, so not at once.
                for job in undecided:
                    job.run_at = max(job.run_at, now + _RETRY_FOLLOWER_AFTER)
            self.returns.give_back_later(undecided, error)
            self.pace.sleeper.interrupt()

    def _missed_start(self, job: ClaimedJob, received: float) -> None:
        """No runner was free before the job's `start_by`: have its follower decide again."""
        _, gated = self._followers.split([job])
        for follower in gated:
            self._gate_soon(follower, [job], received)

    async def wait_for_decisions(self) -> None:
        """Wait until followers have decided on all claimed jobs, and the rest is given back. What
        is handed over just now counts."""
        async with self._claiming:
            pass
        while self._gating or self.returns.in_progress:
            await asyncio.gather(*self._gating, *self.returns.in_progress)

    async def claim_quarantined(self) -> None:
        """Claim one quarantined job at a time: if it crashes this worker, it does so alone."""
        if (
            self._stopping.requested.is_set()
            or self._lease.fenced is not None
            or not self.runners.free
        ):
            return
        held = self._quarantined
        if self._claiming.locked() or (held is not None and self.holdings.holds(held)):
            return
        worker_id = self._lease.worker_id
        try:
            async with self._claiming:
                jobs = await self._store.claim_quarantined(worker_id, self._settings.queues)
                if worker_id == self._lease.worker_id:
                    self._accept(jobs, time.monotonic())
                    self._quarantined = next(iter(jobs), None)
                else:
                    self.returns.give_back_soon(jobs)
        except BaseException:
            # A job may have been claimed that we do not know of.
            self.unsure = True
            raise

    def is_idle_for(self, job: NewJob) -> bool:
        """Whether it sleeps, holds nothing, and would claim this job as soon as it is enqueued."""
        pace = self.pace
        return (
            self.takes_runs
            and not pace.should_claim
            and pace.sleeper.asleep
            and not self.holdings
            and not self.holdings.finished
            and not self.unsure
            and not self._claiming.locked()
            and job.task in self._tasks
            and job.queue in self._settings.queues
            and job.queue not in self._limited
        )

    @asynccontextmanager
    async def hand_over(self, ending: int) -> AsyncIterator[Claimant | None]:
        """Let a feature claim the jobs that it makes, while nothing else that is due waits: the
        worker goes on with them without a trip through its sleep."""
        # Claims that are being made are unknown here: they must not be disowned.
        async with self._claiming:
            if (
                self._stopping.requested.is_set()
                or self._lease.fenced is not None
                or self.pace.backlog
            ):
                yield None
                return
            worker_id = self._lease.worker_id
            claimant = Claimant(
                worker_id,
                queues=self._settings.queues,
                tasks=self._tasks,
                most=self.runners.free + ending,
            )
            try:
                yield claimant
            except BaseException:
                self.unsure = True
                self.pace.sleeper.interrupt()
                raise
            stops = self._stopping.requested.is_set()
            if claimant.claimed and worker_id == self._lease.worker_id and not stops:
                self._accept(claimant.claimed, time.monotonic())
            else:
                self.returns.give_back_soon(claimant.claimed)

    # Started and finished jobs

    def _job_started(self, job: ClaimedJob) -> None:
        self._log_started(job)
        if job.key is not None or job.task in self._followed_tasks:
            self._followers.started(job)

    def _job_finished(self, job: ClaimedJob, finished: FinishedJob | None) -> None:
        if job is self._quarantined:
            self._quarantine_next = True
        if not self.holdings.drop(job, is_closed=finished is not None and finished.closed):
            if finished is not None:
                # It was lost, so nothing logs it. See `Events.jobs_finished`.
                finished.exception = None
            self._runner_freed()
            return
        if finished is not None and not finished.recorded:
            self.holdings.finished.append(finished)
        elif finished is not None:
            if not self._recorded:
                asyncio.get_running_loop().call_soon(self._report_recorded)
            self._recorded.append(finished)
        if job.limited:
            self.pace.should_claim = True
        if len(self.holdings.finished) <= 1:
            self.pace.sleeper.interrupt()

    def _runner_freed(self) -> None:
        """More jobs can be claimed, although none of those that are held has finished."""
        self.pace.sleeper.interrupt()

    def _report_recorded(self) -> None:
        recorded, self._recorded = self._recorded, []
        if recorded:
            self._report(recorded, Exchange())

    def _report(self, attempts: Sequence[FinishedJob], answer: Exchange) -> None:
        """Report to followers and the log how attempts finished, as the database recorded it."""
        refused, cancelled = answer.refused, answer.cancelled
        for finished in attempts if refused or cancelled else ():
            if finished.job.id in cancelled:
                finished.outcome, finished.again_after = AttemptOutcome.CANCELLED, None
            if finished.job.id in refused and finished.completed_before:
                mark_completed(finished)
        self._followers.finished(attempts)
        lost: list[FinishedJob] = []
        if refused:
            lost = [f for f in attempts if f.job.id in refused and not f.completed_before]
            attempts = [f for f in attempts if f.job.id not in refused or f.completed_before]
        self._followers.attempted(attempts)
        self._events.jobs_finished(self._worker, attempts)
        for finished in lost:
            self._events.claim_lost(self._worker, finished)

    # After a failed call

    def _call_failed(self, error: BaseException) -> bool:
        """The effect of a call is unknown. Returns whether the database is corrupted."""
        self.unsure = True
        return self._stopping.on_corruption(error)

    async def _reconcile(self) -> None:
        """Make sure what failed calls did, and repeat them where that is needed.

        If the database refused the last call although it could be reached, one of the rows that
        it would have claimed may be the cause.
        """
        self.unsure = True
        await self.flush()
        refusal, self._refusal = self._refusal, None
        if refusal is not None and not await self._park_unreadable():
            await self.back_off(refusal)

    async def flush(self) -> None:
        """Record finished jobs and give back what must be. After a failed call, also release the
        claims that we do not know of. Idempotent, whatever earlier attempts did."""
        self._report_recorded()
        if self._recording is not None:
            await asyncio.wait([self._recording])
        finished, closed = self.holdings.take_finished()
        if finished or closed:
            try:
                answer = await self._record(finished, closed)
            except BaseException:
                self.holdings.put_back(finished, closed)
                raise
            self._report(finished, answer)
        await self.returns.retry()
        if self.unsure:
            async with self._claiming:
                await self._store.disown(
                    self._lease.worker_id, self.holdings.tokens, lead=self.pace.lead
                )
            self.unsure = False
            self._reconcile_at = time.monotonic() + _RECONCILE_AGAIN_SECONDS

    async def _record(self, finished: Sequence[FinishedJob], closed: Sequence[int]) -> Exchange:
        try:
            return await self._store.finish_again(finished, closed)
        except TransientError:
            raise
        except StorageError:
            if not finished:
                raise
        # The database may refuse one of them for good: that must not hold up the others.
        answers: list[Exchange] = []
        refusal: StorageError | None = None
        for one in finished:
            try:
                answers.append(await self._record_one(one))
            except TransientError:
                raise
            except StorageError as error:
                refusal = error
        if refusal is not None:
            # All are tried again. Those that are recorded by now stay so.
            raise refusal
        await self._store.finish_again([], closed)
        return Exchange(
            refused=frozenset().union(*(answer.refused for answer in answers)),
            cancelled=frozenset().union(*(answer.cancelled for answer in answers)),
        )

    async def _record_one(self, finished: FinishedJob) -> Exchange:
        """Record one attempt; without its result and error if the database rejects their values."""
        try:
            return await self._store.finish_again([finished], [])
        except DataRejected as error:
            finished.error_code = NOT_STORED
            finished.error = f"The database refused its outcome: {error}"
            finished.result = finished.traceback = None
            return await self._store.finish_again([finished], [])

    async def _park_unreadable(self) -> bool:
        try:
            parked = await self._store.park_unreadable(
                self._settings.queues, most=self._settings.batch
            )
        except StorageError:
            return False
        for job_id, reason in parked.items():
            log_event(
                log,
                logging.ERROR,
                "job_unreadable",
                "Job %(job)s cannot be read and was parked: %(error)s",
                worker=self._worker,
                job=job_id,
                error=reason,
            )
        return bool(parked)

    async def back_off(self, error: StorageError) -> None:
        """Wait before the next call to the database."""
        if self._stopping.on_corruption(error):
            return
        self.failures += 1
        wait = OUTAGE_SECONDS
        if isinstance(error, TransactionConflict):
            # The other transaction is over. Workers must not all try again at the same moment.
            wait = backoff(self.failures) * uniform(0.0, 0.1)
            self._events.transaction_conflict(self._worker, str(error), wait)
        else:
            self.outage.failed("worker", error, wait)
        stopping, lease = self._stopping.requested, self._lease
        fenced, deadline = lease.fenced, time.monotonic() + wait
        while time.monotonic() < deadline and not stopping.is_set() and lease.fenced == fenced:  # noqa: ASYNC110
            await asyncio.sleep(0.05)

    async def read_limits(self) -> None:
        """Read which of the worker's queues have limits."""
        self.set_limited(await self._store.limited_queues())

    def set_limited(self, limited: Collection[str]) -> None:
        self._limited = [queue for queue in self._settings.queues if queue in limited]

    def forget(self) -> None:
        """The lease was lost and everything is recorded: nothing is held any more."""
        self.holdings.forget()
        self.returns.waiting.clear()


class _Gate:
    """Carries out what a follower decides about claimed jobs."""

    def __init__(self, loop: Loop, jobs: Sequence[ClaimedJob], received: float) -> None:
        self._loop = loop
        self.received = received
        self.undecided = {job.id: job for job in jobs}

    def start(self, jobs: Sequence[ClaimedJob]) -> Sequence[ClaimedJob]:
        self._decide(jobs)
        loop = self._loop
        if not loop._lease.holds():
            loop.returns.give_back_soon(jobs)
            return []
        # The lease may have been lost, and won again, while the follower decided.
        loop.runners.put([job for job in jobs if loop.holdings.holds(job)], received=self.received)
        return [job for job in jobs if not loop.holdings.holds(job)]

    def skip(self, job: ClaimedJob, outcome: AttemptOutcome, reason: Reason) -> None:
        self._decide([job])
        self._loop._job_finished(job, FinishedJob.because(job, outcome, reason))

    async def postpone(self, jobs: Sequence[ClaimedJob]) -> None:
        self._decide(jobs)
        await self._loop.returns.give_back(jobs)

    def park(self, job: ClaimedJob, reason: Reason) -> None:
        self._decide([job])
        self._loop.returns.park_for_others(job, reason)

    def _decide(self, jobs: Sequence[ClaimedJob]) -> None:
        for job in jobs:
            del self.undecided[job.id]


def _set_start_times(
    jobs: Sequence[ClaimedJob], moment: datetime, *, read: float, sent: float, received: float
) -> float:
    """Set when each job may start; return the monotonic time of `claimed_at`.

    The database's clock showed `moment` before `read`, so it reaches any later time no later than
    that long after `read`: no job starts early. `claimed_at` was read between `sent` and
    `received`. If the calculation disagrees, the clock was set in between. Then only the time of
    the answer counts, so that no job starts early or is held for hours.
    """
    claimed_at = jobs[0].claimed_at
    claimed = read + (claimed_at - moment).total_seconds()
    if not sent <= claimed <= received:
        claimed = received
    for job in jobs:
        job.not_before = claimed + (job.run_at - claimed_at).total_seconds()
    return claimed
