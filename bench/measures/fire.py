"""A thousand schedules due in the same second, and fifty workers that race for them.

The workers live in several processes, each with one pool of connections. They claim ahead of the
tick, so a claim's latency is its own: from its look until the worker holds the job. The rate counts
from the look of the first claim to the answer of the last. The baseline is a claim by hand, with as
many connections. How long after the tick handlers begin stands beside the same with two workers.
"""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import chain

import psycopg

from bench import duetime_side, raw
from bench.environment import Environment, execute
from bench.processes import Child, children
from bench.reading import Reading, Wrong, percentile
from bench.scale import Scale

_DEADLOCKS = "select deadlocks from pg_stat_database where datname = current_database()"
_LEDGER = """
select extract(epoch from tick)::float8, count(*),
    count(*) filter (where status = 'fired' and succeeded)
from duetime.schedule_tick where job_id is not null group by tick
"""
_WAITS = """
select wait_event_type || ' ' || wait_event, count(*) from pg_stat_activity
where datname = current_database() and state = 'active' and wait_event is not null
  and pid <> pg_backend_pid()
group by 1
"""
_SAMPLE_SECONDS = 0.01
_HEAD_START = 0.5
Claim = Sequence[float]
"""When the job was due, when the claim looked, when the claimer had it."""


class Waits:
    """What backends were seen to wait for, in samples."""

    def __init__(self) -> None:
        self.samples = 0
        self.seen: Counter[str] = Counter()
        self.most_locked = 0

    def add(self, waiting: dict[str, int]) -> None:
        self.samples += 1
        self.seen.update(waiting)
        locked = sum(count for event, count in waiting.items() if event.startswith("Lock "))
        self.most_locked = max(self.most_locked, locked)

    def __str__(self) -> str:
        seen = ", ".join(f"{event} {count}" for event, count in self.seen.most_common(5))
        return (
            f"{self.most_locked} backends at most waited for a lock; waits seen in "
            f"{self.samples} samples: {seen or 'none'}"
        )


def measure(environment: Environment) -> dict[str, Reading]:
    scale = environment.scale
    database = environment.database("fleet")
    duetime_side.put_schedules(database, scale.fire_schedules, f"*/{scale.fire_every} * * * * *")
    execute(database, "vacuum analyze", "checkpoint")
    [(deadlocks,)] = execute(database, _DEADLOCKS)
    ticks, waits, reports = _fire(
        database, scale, processes=scale.fleet_processes, workers=scale.fleet_workers
    )
    few_ticks, _, few_reports = _fire(database, scale, processes=2, workers=1)
    [(more,)] = execute(database, _DEADLOCKS)
    if more != deadlocks:
        raise Wrong(f"{more - deadlocks} deadlocks")
    ours = [
        [claim for report in reports for claim in report["claims"] if claim[0] == tick]
        for tick in ticks
    ]
    began, few = _began(reports, ticks), _began(few_reports, few_ticks)
    beside = [_fire_raw(database, scale) for _ in ticks]
    return {
        "schedule_fire_1000": Reading(
            statistics.median(map(_rate, ours)),
            statistics.median(map(_rate, beside)),
            [*map(_rate, ours)],
            [*map(_rate, beside)],
            note=f"0 deadlocks; {waits}",
        ),
        "schedule_claim_p99_ms": Reading(
            percentile([took for claims in ours for took in _took(claims)], 0.99),
            percentile([took for claims in beside for took in _took(claims)], 0.99),
            [percentile(_took(claims), 0.99) for claims in ours],
            [percentile(_took(claims), 0.99) for claims in beside],
        ),
        "schedule_start_p99_ms": Reading(
            percentile([*chain(*began)], 0.99),
            percentile([*chain(*few)], 0.99),
            [percentile(late, 0.99) for late in began],
            [percentile(late, 0.99) for late in few],
            note=f"p50 {percentile([*chain(*began)], 0.5):.1f} ms; "
            f"{waits.most_locked} backends at most waited for a lock",
        ),
    }


def _began(
    reports: Sequence[dict[str, list[Sequence[float]]]], ticks: Sequence[float]
) -> list[list[float]]:
    """Of each tick, how many milliseconds after it the handlers began."""
    return [
        [(at - of) * 1e3 for report in reports for of, at in report["ticks"] if of == tick]
        for tick in ticks
    ]


def _fire(
    database: str, scale: Scale, *, processes: int, workers: int
) -> tuple[list[float], Waits, list[dict[str, list[Sequence[float]]]]]:
    """Let workers live through some ticks; return what they did, once it is checked."""
    with children(processes, "fleet", database=database, workers=workers) as fleet:
        ticks, waits, reports = _live_through(fleet, database, scale)
    _check(reports, ticks, scale.fire_schedules)
    _check_ledger(database, ticks, scale.fire_schedules)
    return ticks, waits, reports


def _live_through(
    fleet: Sequence[Child], database: str, scale: Scale
) -> tuple[list[float], Waits, list[dict[str, list[Sequence[float]]]]]:
    """The first tick warms them up."""
    for processes in fleet:
        processes.tell("go")
    for processes in fleet:
        processes.hear()
    every = scale.fire_every
    warm_up = math.ceil((time.time() + _HEAD_START) / every) * every
    ticks = [float(warm_up + every * (n + 1)) for n in range(scale.fire_rounds)]
    with _sampled(database, ticks) as waits:
        time.sleep(ticks[-1] + every / 2 - time.time())
    for processes in fleet:
        processes.tell("stop")
    return ticks, waits, [processes.hear() for processes in fleet]


def _check(
    reports: Sequence[dict[str, list[Sequence[float]]]], ticks: Sequence[float], schedules: int
) -> None:
    for what in ("claims", "ticks"):
        found = Counter(item[0] for report in reports for item in report[what])
        for tick in ticks:
            if found[tick] != schedules:
                raise Wrong(f"{what}: {found[tick]} of {schedules} schedules, of the tick {tick}")


def _check_ledger(database: str, ticks: Sequence[float], schedules: int) -> None:
    ledger = {tick: counts for tick, *counts in execute(database, _LEDGER)}
    for tick in ticks:
        if ledger.get(tick) != [schedules, schedules]:
            raise Wrong(f"the ledger has {ledger.get(tick)} of {schedules} runs of tick {tick}")


def _fire_raw(database: str, scale: Scale) -> list[Claim]:
    execute(database, "truncate raw_job")
    with children(
        scale.fleet_processes, "raw_fleet", dsn=database, connections=scale.fleet_workers
    ) as fleet:
        due = time.time() + _HEAD_START
        raw.load(database, scale.fire_schedules, due=due)
        for processes in fleet:
            processes.tell(due)
        claims = [claim for processes in fleet for claim in processes.hear()]
    if len(claims) != scale.fire_schedules:
        raise Wrong(f"the raw claims took {len(claims)} of {scale.fire_schedules} jobs")
    return claims


def _rate(claims: Sequence[Claim]) -> float:
    return len(claims) / (max(had for _, _, had in claims) - min(at for _, at, _ in claims))


def _took(claims: Sequence[Claim]) -> list[float]:
    return [(had - looked) * 1e3 for _, looked, had in claims]


@contextmanager
def _sampled(database: str, ticks: Sequence[float]) -> Iterator[Waits]:
    """Look what backends wait for, in the half second after each tick."""
    waits = Waits()
    over = threading.Event()

    def sample() -> None:
        with psycopg.connect(database, autocommit=True, prepare_threshold=0) as connection:
            for tick in ticks:
                if over.wait(max(0.0, tick - time.time())):
                    return
                while time.time() < tick + 0.5:
                    waits.add(dict(connection.execute(_WAITS).fetchall()))
                    time.sleep(_SAMPLE_SECONDS)

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield waits
    finally:
        over.set()
        sampler.join()
