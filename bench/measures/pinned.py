"""Rounds while another session holds a snapshot, so that vacuum may remove nothing."""

from __future__ import annotations

import statistics

import psycopg

from bench.environment import Environment, execute
from bench.measures.drain import EMPTY_DUETIME, drain_duetime
from bench.reading import Reading, alternate, medians

ROUNDS = 6
_FEW_ROUNDS = 3


def measure(environment: Environment) -> dict[str, Reading]:
    """The sixth round beside the first."""
    jobs = environment.scale.pinned_jobs
    database = environment.database("pinned")
    drain_duetime(database, jobs)  # So that the first round is not the one that warms up.
    sequences = [_measure_sequence(database, jobs) for _ in range(environment.scale.rounds)]
    course = " → ".join(
        f"{statistics.median(rates):,.0f}" for rates in zip(*sequences, strict=True)
    )
    first, sixth = [rates[0] for rates in sequences], [rates[-1] for rates in sequences]
    return {"drain_pinned": medians(sixth, first, f"by round: {course} jobs/s")}


def measure_beside_none(environment: Environment) -> dict[str, Reading]:
    """As many rounds without the snapshot, with vacuum in between: the last round of each."""
    jobs = environment.scale.pinned_jobs
    database = environment.database("pinned")
    drain_duetime(database, jobs)
    found = alternate(
        environment.scale,
        pinned=lambda: _measure_sequence(database, jobs, _FEW_ROUNDS)[-1],
        free=lambda: _measure_free(database, jobs)[-1],
    )
    return {"drain_pinned_unpinned": medians(found["pinned"], found["free"])}


def _measure_free(database: str, jobs: int) -> list[float]:
    execute(database, EMPTY_DUETIME, "vacuum analyze")
    rates = []
    for _ in range(_FEW_ROUNDS):
        rates.append(drain_duetime(database, jobs, empty=False))
        # What autovacuum does in between on a server that lives longer than this.
        execute(database, "vacuum duetime.due, duetime.claim")
    return rates


def _measure_sequence(database: str, jobs: int, count: int = ROUNDS) -> list[float]:
    execute(database, EMPTY_DUETIME, "vacuum analyze")
    with psycopg.connect(database) as snapshot:
        snapshot.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        snapshot.execute("select txid_current()")
        return [drain_duetime(database, jobs, empty=False) for _ in range(count)]
