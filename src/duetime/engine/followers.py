"""How a feature follows jobs. The engine knows jobs, and of features only what is in this file.

A feature such as schedules or reminders registers a follower with each worker. The worker asks it
before jobs start, tells it how they ended, and has it repair what a crash left undone. What has to
be written in the very transaction that completes a job, the feature's own task hands to its
context: see `Context.finish_with`.
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
from duetime.storage.store import Store
from duetime.telemetry.events import Events, log_event

log = logging.getLogger("duetime.worker")


class WorkerView(NamedTuple):
    """The worker that a follower serves."""

    name: str
    store: Store
    events: Events
    tasks: Mapping[str, TaskDefinition]


class Gate(Protocol):
    """Where a follower says what becomes of the jobs that it was asked about."""

    def start(self, jobs: Sequence[ClaimedJob]) -> Sequence[ClaimedJob]:
        """Let jobs start. Returns those that this worker has lost meanwhile: they do not."""

    def skip(self, job: ClaimedJob, outcome: AttemptOutcome, reason: Reason) -> None:
        """End a job without running it."""

    async def put_off(self, jobs: Sequence[ClaimedJob]) -> None:
        """Give jobs back, to be claimed again at their `run_at`; the attempt does not count."""

    def park(self, job: ClaimedJob, reason: Reason) -> None:
        """Set a job aside for workers that can run it; this one does not claim it again."""


class Follower:
    """What a feature does about jobs beside running them. Each worker has one of each feature.

    It follows the jobs of its `tasks`, and those whose key begins with its `key_prefix`. An error
    that it raises is logged and stops neither the worker nor the job.
    """

    name = ""
    """What its repairs are called in log lines."""
    tasks: frozenset[str] = frozenset()
    key_prefix: str | None = None
    gates = False
    """Whether the jobs that it follows start only when `before_start` says so."""

    async def open(self) -> None:
        """Called once, after the worker has registered and before it claims."""

    async def before_start(self, jobs: Sequence[ClaimedJob], received: float, gate: Gate) -> None:
        """Decide on jobs that were claimed together, at the monotonic time `received`.

        Each must be passed to `gate`, in any order and as soon as it is decided on. Those that are
        left over are given back. A job that has a `start_by` and found no free runner until then
        is asked about again.
        """
        raise NotImplementedError

    def started(self, job: ClaimedJob) -> None:
        """The handler of a job starts."""

    def ended(self, ended: Sequence[FinishedJob]) -> None:
        """Jobs have ended for good, and that is recorded.

        Called after the transaction that recorded it: a crash in between is left to `repair`.
        Those that are `recorded` were completed by their handler's own transaction.
        """

    async def given_back(self, jobs: Sequence[ClaimedJob]) -> None:
        """Jobs that were let start are about to be given back, without having started."""

    async def repair(self) -> float:
        """Complete what a crashed worker, or this one, left undone. Every worker does, with no
        leader. Returns the seconds until the next time."""
        return 60.0

    async def next_repair(self) -> datetime | None:
        """When `repair` will have something to do, if no job is claimed before. (For the testing
        kit, which moves its clock there.)"""
        return None

    async def flush(self) -> None:
        """Wait until everything that was reported to this follower is written."""

    async def prune(self) -> float | None:
        """Remove a batch of what is old. Returns the seconds after which to continue; None: nothing
        is left."""
        return None

    def services(self) -> Sequence[Service]:
        """What else is to be done regularly while the worker runs."""
        return ()


MakeFollower = Callable[[WorkerView], Follower]


class Followers:
    """The followers of one worker: finds those that a job concerns."""

    def __init__(self, followers: Sequence[Follower]) -> None:
        self._all = tuple(followers)
        self._by_task: dict[str, list[Follower]] = {}
        self._by_prefix: list[tuple[str, Follower]] = []
        for follower in self._all:
            for task in follower.tasks:
                self._by_task.setdefault(task, []).append(follower)
            if follower.key_prefix is not None:
                self._by_prefix.append((follower.key_prefix, follower))
        self.tasks = frozenset(self._by_task)
        """A job that has another task and no key concerns no follower. For the hot path."""

    def __iter__(self) -> Iterator[Follower]:
        return iter(self._all)

    def of(self, job: ClaimedJob) -> list[Follower]:
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
        """Split claimed jobs: those that start at once, and those that a follower lets start.

        The first follower that gates a job is the one that is asked.
        """
        tasks = self.tasks
        if not [job for job in jobs if job.key is not None or job.task in tasks]:
            return jobs, {}
        free: list[ClaimedJob] = []
        gated: dict[Follower, list[ClaimedJob]] = {}
        for job in jobs:
            gate = next((follower for follower in self.of(job) if follower.gates), None)
            if gate is None:
                free.append(job)
            else:
                gated.setdefault(gate, []).append(job)
        return free, gated

    def started(self, job: ClaimedJob) -> None:
        for follower in self.of(job):
            with self._logged(follower):
                follower.started(job)

    def ended(self, ended: Sequence[FinishedJob]) -> None:
        """Report jobs that have ended. Those that run again have not."""
        tasks = self.tasks
        followed: dict[Follower, list[FinishedJob]] = {}
        for end in [end for end in ended if end.job.key is not None or end.job.task in tasks]:
            if end.again_after is None:
                for follower in self.of(end.job):
                    followed.setdefault(follower, []).append(end)
        for follower, mine in followed.items():
            with self._logged(follower):
                follower.ended(mine)

    async def given_back(self, jobs: Sequence[ClaimedJob]) -> None:
        for follower in self._all:
            if mine := [job for job in jobs if follower in self.of(job)]:
                with self._logged(follower):
                    await follower.given_back(mine)

    async def flush(self) -> None:
        for follower in self._all:
            await follower.flush()

    @contextmanager
    def _logged(self, follower: Follower) -> Iterator[None]:
        """A mistake in a feature must not take the worker down: `repair` makes up for it."""
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
    """Runs `write` in the background: once at a time, and again if it was asked for meanwhile."""

    def __init__(self, name: str, write: Callable[[], Awaitable[None]]) -> None:
        self._name = name
        self._write = write
        self._again = False
        self._writing: asyncio.Task[None] | None = None

    def soon(self) -> None:
        self._again = True
        if self._writing is None:
            self._writing = asyncio.create_task(self._run(), name=self._name)

    async def done(self) -> None:
        """Wait until nothing is left to write."""
        while self._writing is not None:
            await asyncio.wait([self._writing])

    async def _run(self) -> None:
        try:
            while self._again:
                self._again = False
                await self._write()
        finally:
            self._writing = None
