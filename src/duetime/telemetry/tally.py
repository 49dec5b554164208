"""What the workers of a process count: plain numbers, added once for each batch of jobs.

They are counted whether or not anybody reads them, so that nothing is missing from the first
scrape. `metrics.py` writes them in Prometheus' format.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import NamedTuple, TypeVar

from duetime.domain.checks import RUN_KEYS
from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob

T = TypeVar("T")

BOUNDS = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
    300.0, 1800.0,
)  # fmt: skip
"""The upper bounds of a histogram's buckets, in seconds."""
OTHER = "other"
"""Stands for the names beyond the limit."""
SAMPLE = 50
"""Of a batch of more than about so many attempts of a task, so many are measured."""
MAX_NAMES = 1000
"""How many tasks, and how many workers, are counted under their own names."""

_BOUNDS_US = tuple(int(bound * 1e6) for bound in BOUNDS)
_MANY = 2 * len(_BOUNDS_US)
_MICROSECOND = timedelta(microseconds=1)
_COMPLETED = AttemptOutcome.COMPLETED
_REMIND_TASK = "duetime.remind"
"""As `domain.reminders.reminder` has it, which is not imported here: `import duetime` is quick."""


class WorkerState(NamedTuple):
    """What a worker holds at the moment."""

    running: int
    waiting: int
    """Claimed jobs that wait for a free runner."""
    concurrency: int
    listening: bool
    """Whether notifications reach it."""


class Histogram:
    """How many durations fell into each bucket, and their sum. In microseconds."""

    __slots__ = ("counts", "total")

    def __init__(self, counts: Sequence[int] = (0,) * (len(BOUNDS) + 1), total: int = 0) -> None:
        self.counts = list(counts)
        self.total = total

    def add(self, durations: list[int], times: int = 1) -> None:
        """Add many at once, each so many times. May sort the list."""
        self.total += sum(durations) * times
        if len(durations) < _MANY:
            for duration in durations:
                self.counts[bisect_left(_BOUNDS_US, duration)] += times
            return
        # One search for each bucket is cheaper than one for each job.
        durations.sort()
        below = 0
        for bucket, bound in enumerate(_BOUNDS_US):
            if below == len(durations):
                break
            upto = bisect_right(durations, bound, below)
            self.counts[bucket] += (upto - below) * times
            below = upto
        self.counts[-1] += (len(durations) - below) * times

    def copy(self) -> Histogram:
        return Histogram(self.counts, self.total)


class Tally:
    """The counts of an app's workers in this process. Workers may run on several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.claimed: Counter[tuple[str, str]] = Counter()
        """By task and worker."""
        self.finished: Counter[tuple[str, str]] = Counter()
        """Attempts, by task and outcome."""
        self.queue_time: dict[str, Histogram] = {}
        """From the due time to the start, by task."""
        self.run_time: dict[str, Histogram] = {}
        self.lateness: dict[str, Histogram] = {}
        """From the due time to the start of the first attempt: of a `job`, `tick`, `reminder`."""
        self.claim_time = Histogram()
        self.loop_lag = Histogram()
        self.claims: Counter[str] = Counter()
        """Claims, by whether they brought jobs: `claimed` or `empty`."""
        self.wakeups: Counter[str] = Counter()
        self.notifications: Counter[str] = Counter()
        """By channel."""
        self.claimed_by_time = 0
        """Jobs that were claimed after a wake-up by time, and not by a notification."""
        self.skipped_ticks: Counter[str] = Counter()
        """By status."""
        self.rescued: Counter[str] = Counter()
        """By the state that the jobs got."""
        self.events: Counter[str] = Counter()
        """Things that should be rare: `lease_lost`, `claim_lost`, `transaction_conflict`."""
        self.workers: dict[str, Callable[[], WorkerState]] = {}
        """Those that run at the moment."""
        self._woken_by_time: set[str] = set()
        self._names: dict[str, set[str]] = {"task": set(), "worker": set()}

    def copy(self) -> Tally:
        """Return the counts as they are now. The copy does not change."""
        copy = Tally()
        with self._lock:
            for name, value in vars(self).items():
                if isinstance(value, Histogram | Counter):
                    setattr(copy, name, value.copy())
                elif isinstance(value, dict) and name in _HISTOGRAMS:
                    setattr(copy, name, {key: one.copy() for key, one in value.items()})
            copy.claimed_by_time = self.claimed_by_time
            copy.workers = dict(self.workers)
        return copy

    # Called by workers

    def worker_started(self, worker: str, state: Callable[[], WorkerState]) -> None:
        with self._lock:
            self.workers[worker] = state

    def worker_stopped(self, worker: str) -> None:
        with self._lock:
            self.workers.pop(worker, None)
            self._woken_by_time.discard(worker)

    def woken(self, worker: str, reason: str) -> None:
        with self._lock:
            self.wakeups[reason] += 1
            if reason == "timed out":
                self._woken_by_time.add(worker)
            else:
                self._woken_by_time.discard(worker)

    def notified(self, channel: str) -> None:
        with self._lock:
            self.notifications[channel] += 1

    def claim_answered(self, claimed: int, seconds: float) -> None:
        with self._lock:
            self.claims["claimed" if claimed else "empty"] += 1
            self.claim_time.add([int(seconds * 1e6)])

    def jobs_claimed(self, worker: str, jobs: Sequence[ClaimedJob]) -> None:
        by_task = _by_task(jobs, [job.task for job in jobs])
        with self._lock:
            name = self._name("worker", worker)
            for task, claimed in by_task:
                self.claimed[self._name("task", task), name] += len(claimed)
            if worker in self._woken_by_time:
                self.claimed_by_time += len(jobs)

    def jobs_finished(self, jobs: Sequence[FinishedJob]) -> None:
        by_task = _by_task(jobs, [finished.job.task for finished in jobs])
        with self._lock:
            for task, attempts in by_task:
                self._attempts_finished(task, attempts)

    def _attempts_finished(self, task: str, attempts: Sequence[FinishedJob]) -> None:
        name = self._name("task", task)
        ran = [one for one in attempts if one.outcome is _COMPLETED]
        if ran:
            self.finished[name, _COMPLETED.value] += len(ran)
        if len(ran) < len(attempts):
            others = [one for one in attempts if one.outcome is not _COMPLETED]
            for outcome, count in Counter([one.outcome for one in others]).items():
                self.finished[name, outcome.value] += count
            # The rest ended before their handlers were called.
            ran += [one for one in others if one.finished_us > one.started_us]
        if len(ran) <= SAMPLE:
            self._add_times(task, name, ran, 1)
            return
        # Of a large batch every so many-th is measured, and counts for all of them.
        step = len(ran) // SAMPLE
        rest = len(ran) % step
        self._add_times(task, name, ran[rest::step], step)
        self._add_times(task, name, ran[:rest], 1)

    def _add_times(self, task: str, name: str, ran: Sequence[FinishedJob], times: int) -> None:
        if not ran:
            return
        waited = [
            max(0, (one.job.claimed_at - one.job.run_at) // _MICROSECOND + one.started_us)
            for one in ran
        ]
        lateness: dict[str, list[int]] = {}
        plain = "reminder" if task == _REMIND_TASK else "job"
        for one, late in zip(ran, waited, strict=True):
            if one.job.attempt == 1:
                key = one.job.key
                kind = "tick" if key is not None and key.startswith(RUN_KEYS) else plain
                lateness.setdefault(kind, []).append(late)
        for kind, durations in lateness.items():
            _of(self.lateness, kind).add(durations, times)
        _of(self.queue_time, name).add(waited, times)
        _of(self.run_time, name).add([one.finished_us - one.started_us for one in ran], times)

    def job_rescued(self, state: str) -> None:
        with self._lock:
            self.rescued[state] += 1

    def tick_skipped(self, status: str) -> None:
        with self._lock:
            self.skipped_ticks[status] += 1

    def happened(self, event: str) -> None:
        with self._lock:
            self.events[event] += 1

    def loop_lagged(self, seconds: float) -> None:
        with self._lock:
            self.loop_lag.add([max(0, int(seconds * 1e6))])

    def _name(self, kind: str, name: str) -> str:
        """The name to count under. Jobs can be enqueued for tasks of any name, and a process can
        start workers without end."""
        known = self._names[kind]
        if name not in known:
            if len(known) >= MAX_NAMES:
                return OTHER
            known.add(name)
        return name


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """Return the sum of histograms."""
    result = Histogram()
    for one in histograms:
        result.counts = [a + b for a, b in zip(result.counts, one.counts, strict=True)]
        result.total += one.total
    return result


_HISTOGRAMS = frozenset({"queue_time", "run_time", "lateness"})


def _by_task(items: Sequence[T], tasks: list[str]) -> Iterable[tuple[str, Sequence[T]]]:
    """Group items by their tasks. Most batches have one."""
    if tasks and tasks.count(tasks[0]) == len(tasks):
        return [(tasks[0], items)]
    groups: dict[str, list[T]] = {}
    for item, task in zip(items, tasks, strict=True):
        groups.setdefault(task, []).append(item)
    return groups.items()


def _of(histograms: dict[str, Histogram], name: str) -> Histogram:
    found = histograms.get(name)
    if found is None:
        found = histograms[name] = Histogram()
    return found
