"""How a feature follows jobs. The engine knows jobs, and nothing of features but this interface.

A feature such as schedules or reminders registers a follower with each worker. The worker calls it
before jobs start, after they have finished, and regularly, to repair what a crash left undone. To
write something in the transaction that completes a job, see `Context.finish_with`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import NamedTuple, Protocol

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.jobs.task import TaskDefinition
from duetime.domain.reasons import Reason
from duetime.engine.services import Service
from duetime.errors import StorageError
from duetime.storage.store import Statements, Store
from duetime.telemetry.events import Events, log_event

log = logging.getLogger("duetime.worker")


class WorkerView(NamedTuple):
    """The worker that a follower belongs to."""

    name: str
    store: Store
    events: Events
    tasks: Mapping[str, TaskDefinition]


class Gate(Protocol):
    """How a follower decides what becomes of the jobs that `before_start` was called with."""

    def start(self, jobs: Sequence[ClaimedJob]) -> Sequence[ClaimedJob]:
        """Start jobs. Returns those that this worker lost in the meantime, which do not start."""

    def skip(self, job: ClaimedJob, outcome: AttemptOutcome, reason: Reason) -> None:
        """Finish a job without running it."""

    async def postpone(self, jobs: Sequence[ClaimedJob]) -> None:
        """Release jobs until their `run_at`, without counting the attempt."""

    def park(self, job: ClaimedJob, reason: Reason) -> None:
        """Leave a job to workers that can run it. This worker does not claim it again."""


class Follower:
    """What a feature does in a worker besides running jobs. Each worker has one of each feature.

    It follows the jobs of its `tasks` and the jobs whose key starts with its `key_prefix`. An
    exception that it raises is logged and stops neither the worker nor the job.
    """

    name = ""
    """The name of its `repair` service in log events."""
    tasks: frozenset[str] = frozenset()
    key_prefix: str | None = None
    gates = False
    """Whether the jobs that it follows wait for `before_start` to decide on them."""
    check_every: float | None = None
    """How many seconds pass between two calls of `check`. None: it has none, and `repair` is
    called regularly."""
    every_attempt = False
    """Whether `attempted` is called, with the attempts of all jobs."""

    async def open(self) -> None:
        """Called once, after the worker has registered and before it claims."""

    async def before_start(self, jobs: Sequence[ClaimedJob], received: float, gate: Gate) -> None:
        """Decide on jobs that were claimed together, at the monotonic time `received`.

        Pass each job to `gate`, in any order. Jobs that are not passed on are given back. A job
        with a `start_by` that found no free runner until then is passed to this method again.
        """
        raise NotImplementedError

    def started(self, job: ClaimedJob) -> None:
        """The handler of a job is about to be called."""

    def finished(self, jobs: Sequence[FinishedJob]) -> None:
        """Jobs have finished: they will not be retried.

        Called after the transaction that recorded it, so `repair` must handle a crash in between.
        A job with `recorded` set was completed in its handler's own transaction.
        """

    def attempted(self, attempts: Sequence[FinishedJob]) -> None:
        """Attempts of any jobs were recorded. On the hot path: called once for each batch."""

    async def given_back(self, jobs: Sequence[ClaimedJob]) -> None:
        """Jobs that passed the gate are about to be given back without having started."""

    async def repair(self) -> float:
        """Complete what a crashed worker left undone; every worker does this, without a leader.

        Returns the seconds until the next call."""
        return 60.0

    def check(self) -> Statements:
        """Statements that only read, and return whether `repair` has something to do. Made
        together with those of others: one statement is best."""
        raise NotImplementedError

    def repairing(self) -> Service:
        """How the worker calls `repair`."""
        every = self.check_every
        if every is None:
            return Service(self.name, self.repair)
        return Service(self.name, self.repair, check=self.check, every=every)

    async def next_repair(self) -> datetime | None:
        """When `repair` will next have something to do if no job is claimed before then.

        Used by the testing kit, which moves its clock to that time."""
        return None

    async def flush(self) -> None:
        """Wait until everything that was reported to this follower is written."""

    async def close(self) -> None:
        """Called once, after the worker's last job has finished."""

    async def prune(self) -> float | None:
        """Delete a batch of old rows. Returns the seconds until the next batch, None if none is
        left."""
        return None

    def services(self) -> Sequence[Service]:
        """What else runs regularly in this worker."""
        return ()


MakeFollower = Callable[[WorkerView], Follower]


class Followers:
    """The followers of one worker. Calls those that follow a job."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self._all = tuple(followers)
        self._by_task: dict[str, list[Follower]] = {}
        self._by_prefix: list[tuple[str, Follower]] = []
        for follower in self._all:
            for task in follower.tasks:
                self._by_task.setdefault(task, []).append(follower)
            if follower.key_prefix is not None:
                self._by_prefix.append((follower.key_prefix, follower))
        self._of_every_attempt = [one for one in self._all if one.every_attempt]
        self.tasks = frozenset(self._by_task)
        """A job of any other task that has no key is not followed. For the hot path."""

    def __iter__(self) -> Iterator[Follower]:
        return iter(self._all)

    def following(self, job: ClaimedJob) -> list[Follower]:
        found = list(self._by_task.get(job.task, ()))
        if job.key is not None:
            key = job.key
            found += [
                follower
                for prefix, follower in self._by_prefix
                if key.startswith(prefix) and follower not in found
            ]
        return found

    def split(
        self, jobs: Sequence[ClaimedJob]
    ) -> tuple[Sequence[ClaimedJob], dict[Follower, list[ClaimedJob]]]:
        """Split claimed jobs into those that start at once and those that a follower decides on.

        If several followers gate a job, the first one decides.
        """
        tasks = self.tasks
        if not [job for job in jobs if job.key is not None or job.task in tasks]:
            return jobs, {}
        free: list[ClaimedJob] = []
        gated: dict[Follower, list[ClaimedJob]] = {}
        for job in jobs:
            gate = next((follower for follower in self.following(job) if follower.gates), None)
            if gate is None:
                free.append(job)
            else:
                gated.setdefault(gate, []).append(job)
        return free, gated

    def started(self, job: ClaimedJob) -> None:
        for follower in self.following(job):
            with self._logged(follower):
                follower.started(job)

    def finished(self, attempts: Sequence[FinishedJob]) -> None:
        """Pass on the jobs that have finished. A job that is retried has not."""
        tasks = self.tasks
        followed: dict[Follower, list[FinishedJob]] = {}
        for done in [
            done for done in attempts if done.job.key is not None or done.job.task in tasks
        ]:
            if done.again_after is None:
                for follower in self.following(done.job):
                    followed.setdefault(follower, []).append(done)
        for follower, jobs in followed.items():
            with self._logged(follower):
                follower.finished(jobs)

    def attempted(self, attempts: Sequence[FinishedJob]) -> None:
        if attempts:
            for follower in self._of_every_attempt:
                with self._logged(follower):
                    follower.attempted(attempts)

    async def given_back(self, jobs: Sequence[ClaimedJob]) -> None:
        for follower in self._all:
            if mine := [job for job in jobs if follower in self.following(job)]:
                with self._logged(follower):
                    await follower.given_back(mine)

    async def flush(self) -> None:
        for follower in self._all:
            await follower.flush()

    async def close(self) -> None:
        for follower in self._all:
            with self._logged(follower):
                await follower.close()

    @contextmanager
    def _logged(self, follower: Follower) -> Iterator[None]:
        """An error in a feature must not stop the worker: `repair` makes up for it."""
        try:
            yield
        except StorageError:
            raise
        except Exception as error:  # noqa: BLE001
            log_event(
                log,
                logging.ERROR,
                "follower_failed",
                "The follower %(follower)s raised an error; its next repair makes up for it.",
                follower=follower.name,
                exc_info=error,
            )


class Upkeep:
    """Runs `write` in the background, never twice at the same time. If `soon` is called while it
    runs, it runs once more."""

    def __init__(self, name: str, write: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._write = write
        self._again = False
        self._writing: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def soon(self) -> None:
        self._cancel_timer()
        self._again = True
        if self._writing is None:
            self._writing = asyncio.create_task(self._run(), name=self._name)

    def within(self, seconds: float) -> None:
        """Run so much later, unless it is to run before anyway."""
        if self._timer is None and not self._again:
            self._timer = asyncio.get_running_loop().call_later(seconds, self.soon)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def done(self) -> None:
        """Wait until nothing is left to write."""
        if self._timer is not None:
            self.soon()
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _run(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._write()
        finally:
            # If it failed: what came meanwhile is written with what comes next.
            self._again = False
            self._writing = None
