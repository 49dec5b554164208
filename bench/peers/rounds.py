"""One round of one system, in processes of its own, on an empty database.

Enqueue in bulk and drain with one process; again with two; enqueue one after another; then an
idle worker picks up single jobs, and timers at random moments. Handlers note the monotonic clock,
which all processes of a machine share. Each job is counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.peers.checking import check_exactly_once
from bench.peers.systems import System
from bench.processes import Child, ChildFailed
from bench.reading import Wrong, percentile

Executions = list[tuple[int, float]]
"""The numbers of the jobs that ran, and when each handler began."""
_STOP_SECONDS = 20.0
_GAP_SECONDS = (0.03, 0.06)
_HEAD_START = 0.6
"""Seconds until the first timer, so that all are stored and the worker sleeps."""


@dataclass(frozen=True)
class Sizes:
    """How much one round does; `share` is that of each system's own number of jobs."""

    share: float = 1.0
    single_seconds: float = 1.0
    warm_up: int = 3
    pickups: int = 30
    timers: int = 60
    timer_seconds: float = 2.0
    idle_seconds: float = 0.5
    patience_seconds: float = 60.0


QUICK = Sizes(
    share=0.01, single_seconds=0.1, pickups=3, timers=5, timer_seconds=0.3, idle_seconds=0.1
)


@dataclass
class Round:
    """Measures one system once."""

    system: System
    url: str
    sizes: Sizes
    logs: Path
    settle: Callable[[], None] = lambda: None
    """Called before workers start: vacuum and a checkpoint, as after a while of operation."""
    figures: dict[str, float] = field(default_factory=dict)
    executed: int = 0
    _next: int = 0

    def run(self) -> None:
        with self._process("produce") as producer:
            producer.hear()
            bulk = [self._drain(producer, processes) for processes in (1, 2)]
            self.figures["bulk_enqueue"] = max(bulk)
            self._single_and_idle(producer)
            producer.tell("stop")
            producer.hear()

    def _drain(self, producer: Child, processes: int) -> float:
        """Return the rate of the enqueue."""
        jobs = max(10, round(self.system.jobs * self.sizes.share))
        numbers = self._take(jobs)
        seconds = _ask(producer, do="bulk", first=numbers[0], count=jobs)["seconds"]
        self.settle()
        with ExitStack() as stack:
            workers = [
                stack.enter_context(self._process("work", tell=False)) for _ in range(processes)
            ]
            _start(workers)
            _wait_until_ran(workers, jobs, self.sizes.patience_seconds)
            executions = self._stop(workers, producer, numbers)
        times = [at for _, at in executions]
        self.figures[f"drain_{processes}"] = jobs / (max(times) - min(times))
        return float(jobs / seconds)

    def _single_and_idle(self, producer: Child) -> None:
        """One enqueue after another without a worker, and then for one that sleeps."""
        first = self._next
        most = max(10, round(self.system.jobs * self.sizes.share))
        said = _ask(
            producer, do="single", first=first, most=most, seconds=self.sizes.single_seconds
        )
        self._take(said["count"])
        self.figures["single_enqueue"] = said["count"] / (said["ended"] - said["began"])
        self.settle()
        with self._process("work", tell=True) as worker:
            _start([worker])
            _wait_until_told(worker, said["count"], self.sizes.patience_seconds)
            time.sleep(self.sizes.idle_seconds)
            self.figures["idle_rss_mb"] = _resident_mb(worker.pid)
            committed = [self._pick_up(producer, worker) for _ in range(self._pickups)]
            due = self._time(producer, worker)
            executions = self._stop([worker], producer, range(first, self._next))
        began = dict(executions)
        waits = [began[number] - at for number, at in committed][self.sizes.warm_up :]
        # A handler may begin before the producer has read the answer to its commit: then at once.
        self._note("pickup", [max(wait, 0.0) for wait in waits])
        offset = time.time() - time.monotonic()
        self._note("lateness", [began[number] + offset - at for number, at in due])

    @property
    def _pickups(self) -> int:
        return self.sizes.warm_up + self.sizes.pickups

    def _pick_up(self, producer: Child, worker: Child) -> tuple[int, float]:
        """Enqueue one job for a worker that sleeps; return its number and when it was committed."""
        time.sleep(random.uniform(*_GAP_SECONDS))
        [number] = self._take(1)
        said = _ask(producer, do="single", first=number, most=1, seconds=0)
        _wait_until_told(worker, 1, self.sizes.patience_seconds)
        return number, said["ended"]

    def _time(self, producer: Child, worker: Child) -> list[tuple[int, float]]:
        """Enqueue timers and wait until they have run; return when each was due."""
        begin = time.time() + _HEAD_START
        timers = [
            (number, round(begin + random.uniform(0, self.sizes.timer_seconds), 6))
            for number in self._take(self.sizes.timers)
        ]
        _ask(producer, do="timers", timers=timers)
        if time.time() > begin:
            raise Wrong("timers were due before all were stored")
        _wait_until_told(worker, len(timers), self.sizes.patience_seconds)
        return timers

    def _stop(
        self, workers: Sequence[Child], producer: Child, numbers: Sequence[int]
    ) -> Executions:
        """Wait until the system has recorded every job, stop, and check what ran."""
        deadline = time.monotonic() + self.sizes.patience_seconds
        while left := _ask(producer, do="left")["left"]:
            if time.monotonic() > deadline:
                raise Wrong(f"{left} jobs ran, but are not recorded as finished")
            time.sleep(0.02)
        for worker in workers:
            worker.tell("stop")
        executions: Executions = []
        for worker in workers:
            while "executions" not in (said := worker.hear(_STOP_SECONDS)):
                pass
            executions += [(number, at) for number, at in said["executions"]]
        self.executed += check_exactly_once(numbers, (number for number, _ in executions))
        return executions

    def _note(self, name: str, seconds: Sequence[float]) -> None:
        for share in (50, 99):
            self.figures[f"{name}_p{share}_ms"] = percentile(seconds, share / 100) * 1e3

    def _take(self, count: int) -> range:
        self._next += count
        return range(self._next - count, self._next)

    @contextmanager
    def _process(self, role: str, **parameters: Any) -> Iterator[Child]:
        with start_side(self.system, role, self.logs, url=self.url, **parameters) as child:
            yield child


@contextmanager
def start_side(system: System, role: str, logs: Path, **parameters: Any) -> Iterator[Child]:
    """A process of a system. What it complains about is shown only if it fails."""
    log = logs / f"{system.side}-{role}.log"
    with log.open("w") as errors:
        try:
            with Child(role, command=system.command(role), errors=errors, **parameters) as child:
                yield child
        except ChildFailed as failed:
            lines = log.read_text().strip().splitlines()[-1:]
            raise ChildFailed(" ".join([f"{failed}:", *lines])) from None


def _ask(producer: Child, **request: Any) -> dict[str, Any]:
    producer.tell(request)
    answer: dict[str, Any] = producer.hear()
    return answer


def _start(workers: Sequence[Child]) -> None:
    for worker in workers:
        worker.hear()
    for worker in workers:
        worker.tell("go")


def _wait_until_ran(workers: Sequence[Child], jobs: int, patience: float) -> None:
    counts = [0] * len(workers)
    deadline = time.monotonic() + patience
    while sum(counts) < jobs:
        if time.monotonic() > deadline:
            raise Wrong(f"only {sum(counts)} of {jobs} jobs ran in {patience:g} s")
        time.sleep(0.02)
        for place, worker in enumerate(workers):
            for said in worker.heard():
                if isinstance(said, dict):
                    counts[place] = said.get("count", counts[place])


def _wait_until_told(worker: Child, jobs: int, patience: float) -> None:
    deadline = time.monotonic() + patience
    while jobs > 0:
        try:
            said = worker.hear(deadline - time.monotonic())
        except (ChildFailed, ValueError):
            raise Wrong(f"{jobs} jobs did not run in {patience:g} s") from None
        jobs -= isinstance(said, dict) and "number" in said


def _resident_mb(pid: int) -> float:
    """Return what a process and its descendants hold in memory."""
    own = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return own + sum(_resident_mb(int(child)) for child in children)
