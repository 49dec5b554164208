"""Schedules that tick every second, on an idle worker: how late their handlers begin. Never early.

A million jobs wait for another day beside them. Database and worker share the machine's clock, so
a handler reads the lateness itself. Other schedulers do the same: the best of them is the
baseline. They keep their schedules in memory; beside PostgreSQL one also keeps them there.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path

from bench import duetime_side
from bench.environment import Environment, execute, stop_worker
from bench.peers.installing import PeerMissing
from bench.processes import Child
from bench.reading import Reading, Wrong, percentile
from bench.scale import Scale
from bench.steal import Steal, say_undisturbed

EVERY_SECOND = "* * * * * *"
_SKIPPED_MS = 1000.0
"""How late a run counts that was not to be had before its next tick."""


class Ticks:
    """Milliseconds that runs began late, tick by tick."""

    def __init__(
        self,
        runs: Iterable[Sequence[float]],
        *,
        first: float,
        seconds: float,
        schedules: int,
        steal: Steal | None = None,
    ) -> None:
        found: dict[float, list[float]] = {first + n: [] for n in range(math.ceil(seconds))}
        for tick, began in runs:
            if tick in found:
                found[tick].append((began - tick) * 1e3)
        self.runs = sum(map(len, found.values()))
        self.skipped = sum(max(0, schedules - len(late)) for late in found.values())
        self.doubled = sum(max(0, len(late) - schedules) for late in found.values())
        self.early = sum(late < 0 for late in chain(*found.values()))
        self.late = [
            late + [_SKIPPED_MS] * (schedules - len(late)) for _, late in sorted(found.items())
        ]
        self.held_up = [
            steal is not None and steal.held_up(tick, max(late))
            for tick, late in zip(sorted(found), self.late, strict=True)
        ]
        """Of each tick, whether the host stole time from it."""

    def percentile(self, share: int) -> float:
        return percentile([*chain(*self.late)], share / 100)

    def rounds(self, share: int) -> list[float]:
        return [percentile(late, share / 100) for late in self.late]

    def say_undisturbed(self) -> str:
        held = [held for held, late in zip(self.held_up, self.late, strict=True) for _ in late]
        return say_undisturbed([*chain(*self.late)], held)

    def __str__(self) -> str:
        text = f"p50 {self.percentile(50):.1f}, p99 {self.percentile(99):.1f} ms"
        return text + (f" ({self.skipped} skipped)" if self.skipped else "")


def measure(environment: Environment) -> dict[str, Reading]:
    database = environment.crowded()
    execute(database, "vacuum analyze", "checkpoint")
    ours = _tick_duetime(database, environment.scale)
    environment.drop("crowded")
    url = environment.bare_database("peer").replace("postgresql:", "postgresql+psycopg:")
    readings = _beside_peers(environment, ours, url)
    # How many were early stands beside how many there were.
    return {
        "schedule_lateness_p50_ms": readings[50],
        "schedule_lateness_p99_ms": readings[99],
        "schedule_early": Reading(ours.early, ours.runs),
    }


def measure_sqlite(environment: Environment) -> dict[str, Reading]:
    with tempfile.TemporaryDirectory(dir=environment.directory) as directory:
        database = f"sqlite:///{Path(directory) / 'jobs.db'}"
        duetime_side.load_future(database, environment.scale.future_jobs)
        ours = _tick_duetime(database, environment.scale)
        if ours.early:
            raise Wrong(f"{ours.early} of {ours.runs} runs began early")
        readings = _beside_peers(environment, ours)
    return {f"sqlite_schedule_lateness_p{share}_ms": readings[share] for share in (50, 99)}


def _tick_duetime(database: str, scale: Scale) -> Ticks:
    duetime_side.put_schedules(database, scale.schedules, EVERY_SECOND)
    with Steal() as steal, Child("worker", database=database) as worker:
        worker.hear()
        worker.tell("go")
        worker.hear()
        first = math.ceil(time.time() + scale.schedule_warm_up_seconds)
        # To the middle of a second: nothing is under way.
        time.sleep(first + scale.schedule_seconds + 0.5 - time.time())
        report = stop_worker(worker)
    ticks = Ticks(
        report["ticks"],
        first=first,
        seconds=scale.schedule_seconds,
        schedules=scale.schedules,
        steal=steal,
    )
    if ticks.doubled:
        raise Wrong(f"{ticks.doubled} runs too many of {scale.schedules} schedules")
    return ticks


def _beside_peers(
    environment: Environment, ours: Ticks, url: str | None = None
) -> dict[int, Reading]:
    """Return the readings by percentile, beside the best peer. `url`: a database for one that has
    its schedules in one."""
    scale = environment.scale
    found: dict[str, Ticks] = {}
    missing: set[str] = set()
    peers: list[tuple[str, str, str | None]] = [
        ("APScheduler 3 in memory", "apscheduler_3.py", None)
    ]
    if url is not None:
        peers.append(("APScheduler 3 with SQLAlchemy", "apscheduler_3.py", url))
    peers.append(("Celery beat with Redis", "celery_beat.py", None))
    for name, script, database in peers:
        try:
            said = environment.peers.tick(script, database)
        except PeerMissing as error:
            missing.add(str(error))
            continue
        found[name] = Ticks(
            said["ticks"],
            first=said["first"],
            seconds=scale.peer_seconds,
            schedules=scale.schedules,
        )
    if not found:
        found["a bare event loop"] = _tick_bare(scale)
    peer = min(found, key=lambda name: found[name].percentile(99))
    others = [f"{name} {ticks}" for name, ticks in found.items() if name != peer]
    notes = {
        50: "; ".join([f"beside {peer} {found[peer]}", *others, *sorted(missing)]),
        99: f"latest {max(chain(*ours.late)):.1f} ms"
        + ours.say_undisturbed()
        + (f"; {ours.skipped} of {ours.runs + ours.skipped} runs skipped" if ours.skipped else ""),
    }
    return {
        share: Reading(
            ours.percentile(share),
            found[peer].percentile(share),
            ours.rounds(share),
            found[peer].rounds(share),
            notes[share],
        )
        for share in (50, 99)
    }


def _tick_bare(scale: Scale) -> Ticks:
    with Child(
        "bare_ticks",
        schedules=scale.schedules,
        warm_up=scale.schedule_warm_up_seconds,
        seconds=scale.peer_seconds,
    ) as child:
        said = child.hear()
    return Ticks(
        said["ticks"],
        first=said["first"],
        seconds=scale.peer_seconds,
        schedules=scale.schedules,
    )
