"""Jobs that wait are worked off: from the first claim to the last finish committed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from bench import duetime_side, raw
from bench.environment import Environment, execute, stop_worker
from bench.processes import ANSWER_SECONDS, Child, children
from bench.reading import Reading, Wrong, alternate, best, medians

DRIVERS = ("psycopg", "asyncpg")
_WARM_UP_JOBS = 1_000
"""For each process."""
_FINISHED = """
with made as (
    insert into duetime.job (task, queue, priority, args, max_attempts)
    select 'done', 'default', 5, '{{}}', 3 from generate_series(1, {part}) returning id
)
insert into duetime.attempt (job_id, token, attempt, outcome, claimed_at, started_at, finished_at)
select id, nextval('duetime.claim_token_seq'), 1, 'completed', now(), now(), now() from made
"""
EMPTY_DUETIME = "truncate duetime.job, duetime.due, duetime.claim, duetime.attempt"
_HISTORY = """
select count(*), count(distinct a.job_id),
    count(*) filter (where a.attempt = 1 and a.outcome = 'completed')
from duetime.attempt as a join duetime.job as j on j.id = a.job_id and j.task = 'noop'
"""


def measure_one(environment: Environment) -> dict[str, Reading]:
    return {"drain_1": _beside_raw(environment, processes=1)}


def measure_two(environment: Environment) -> dict[str, Reading]:
    return {"drain_2": _beside_raw(environment, processes=2)}


def measure_eight(environment: Environment) -> dict[str, Reading]:
    """Eight processes on the same queue, beside two: on two cores they cannot be faster."""
    return {"drain_8": _beside_two(environment, processes=8)}


def measure_fifty(environment: Environment) -> dict[str, Reading]:
    return {"drain_50": _beside_two(environment, processes=environment.scale.many_processes)}


def _beside_two(environment: Environment, *, processes: int) -> Reading:
    jobs = environment.scale.drain_jobs
    database = environment.database("plain")
    found = alternate(
        environment.scale,
        many=lambda: drain_resumed(database, jobs, processes=processes),
        two=lambda: drain_resumed(database, jobs, processes=2),
    )
    return medians(found["many"], found["two"])


def measure_crowds(environment: Environment) -> dict[str, Reading]:
    """With ten million jobs that are not due, and with as many that have finished."""
    scale = environment.scale
    plain = environment.database("plain")
    readings = {}
    for kind in ("future", "finished"):
        name = f"crowd_{kind}"
        if kind == "future":
            crowd = environment.crowded(name, scale.crowd)
        else:
            crowd = environment.database(name)
            execute(crowd, *_make_finished(scale.crowd), "vacuum analyze")
        found = alternate(
            scale,
            crowd=partial(drain_duetime, crowd, scale.drain_jobs, empty=False),
            plain=partial(drain_duetime, plain, scale.drain_jobs),
        )
        readings[f"drain_{kind}_10m"] = medians(found["crowd"], found["plain"])
        environment.drop(name)
    return readings


def _make_finished(jobs: int) -> list[str]:
    part = min(jobs, 1_000_000)
    return [_FINISHED.format(part=part)] * (jobs // part)


def measure_future(environment: Environment) -> dict[str, Reading]:
    """With a million jobs that are not due, beside none."""
    scale = environment.scale
    plain, crowded = environment.database("plain"), environment.crowded()
    found = alternate(
        scale,
        crowded=lambda: drain_duetime(crowded, scale.drain_jobs, empty=False),
        plain=lambda: drain_duetime(plain, scale.drain_jobs),
    )
    return {"drain_future_1m": medians(found["crowded"], found["plain"])}


def _beside_raw(environment: Environment, *, processes: int) -> Reading:
    jobs = environment.scale.drain_jobs
    database = environment.database("plain")
    found = alternate(
        environment.scale,
        duetime=lambda: drain_duetime(database, jobs, processes=processes),
        psycopg=lambda: drain_raw(database, jobs, processes=processes, driver="psycopg"),
        asyncpg=lambda: drain_raw(database, jobs, processes=processes, driver="asyncpg"),
    )
    driver = best(found, *DRIVERS)
    return medians(found["duetime"], found[driver], f"raw with {driver}, the faster driver")


def drain_duetime(database: str, jobs: int, *, processes: int = 1, empty: bool = True) -> float:
    """Return jobs/s; raise `Wrong` unless each job ran and completed exactly once."""
    before = load(database, jobs, empty=empty)
    with children(processes, "worker", database=database) as workers:
        reports = work_off(workers, jobs)
    check_each_ran(database, jobs, reports, before)
    return rate(reports, jobs)


def drain_resumed(database: str, jobs: int, *, processes: int) -> float:
    """As `drain_duetime`, by processes that have worked before: their statements are prepared, and
    what a start costs is over. From the moment at which their queue is resumed."""
    warm_up = processes * _WARM_UP_JOBS
    execute(database, EMPTY_DUETIME)
    with children(processes, "worker", database=database) as workers:
        start(workers)
        duetime_side.load(database, warm_up)
        wait_until_ended(workers, warm_up)
        duetime_side.set_paused(database, paused=True)
        before = load(database, jobs, empty=False)
        began = duetime_side.set_paused(database, paused=False)
        wait_until_ended(workers, warm_up + jobs)
        reports = [stop_worker(worker) for worker in workers]
    [after] = execute(database, _HISTORY)
    runs = sum(report["runs"] for report in reports) - warm_up
    _check_grown(jobs, runs, before, after)
    return float(jobs / (max(report["last"] for report in reports if report["last"]) - began))


def load(database: str, jobs: int, *, empty: bool = True) -> Sequence[int]:
    """Store jobs that are due; return what the history held before, for `check_each_ran`."""
    execute(database, *([EMPTY_DUETIME] if empty else []), "checkpoint")
    [before] = execute(database, _HISTORY)
    duetime_side.load(database, jobs)
    execute(database, "analyze duetime.job, duetime.due")
    found: Sequence[int] = before
    return found


def check_each_ran(
    database: str, jobs: int, reports: Sequence[dict[str, Any]], before: Sequence[int]
) -> None:
    """Raise `Wrong` unless each job ran and completed exactly once."""
    [after] = execute(database, _HISTORY)
    _check_grown(jobs, sum(report["runs"] for report in reports), before, after)


def _check_grown(jobs: int, runs: int, before: Sequence[int], after: Sequence[int]) -> None:
    grown = {now - then for now, then in zip(after, before, strict=True)}
    if runs != jobs or grown != {jobs}:
        raise Wrong(f"{jobs} jobs ran {runs} times; the history grew by {sorted(grown)}")


def drain_raw(database: str, jobs: int, *, processes: int, driver: str) -> float:
    execute(database, "truncate raw_job", "checkpoint")
    raw.load(database, jobs)
    execute(database, "analyze raw_job")
    with children(processes, "raw_drain", dsn=database, driver=driver) as workers:
        for worker in workers:
            worker.tell("go")
        reports = [worker.hear() for worker in workers]
    count = sum(report["count"] for report in reports)
    if count != jobs:
        raise Wrong(f"the raw loop handled {count} of {jobs} jobs")
    return rate(reports, jobs)


def work_off(workers: Sequence[Child], jobs: int) -> list[dict[str, Any]]:
    """Let ready workers work until all jobs have ended; return what each reports."""
    work_until_ended(workers, jobs)
    return [stop_worker(worker) for worker in workers]


def work_until_ended(workers: Sequence[Child], jobs: int) -> None:
    """Let ready workers work until all jobs have ended."""
    start(workers)
    wait_until_ended(workers, jobs)


def start(workers: Sequence[Child]) -> None:
    for worker in workers:
        worker.tell("go")
    for worker in workers:
        worker.hear()


def wait_until_ended(workers: Sequence[Child], jobs: int) -> None:
    """Wait until so many jobs have ended since the workers started."""
    deadline = time.monotonic() + ANSWER_SECONDS
    while sum(worker.ended for worker in workers) < jobs:
        if time.monotonic() > deadline:
            ended = sum(worker.ended for worker in workers)
            raise Wrong(f"only {ended} of {jobs} jobs ended in {ANSWER_SECONDS:g} s")
        time.sleep(0.05)
        for worker in workers:
            for said in worker.heard():
                worker.ended = said.get("ended", worker.ended)


def rate(reports: Sequence[dict[str, Any]], jobs: int) -> float:
    first = min(report["first"] for report in reports if report["first"] is not None)
    last = max(report["last"] for report in reports if report["last"] is not None)
    return float(jobs / (last - first))
