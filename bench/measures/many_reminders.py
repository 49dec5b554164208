"""Ten million reminders that wait, beside ten thousand: what workers and readers notice of them.

When the next one is due, how fast jobs and reminders are claimed and sent, and how late a reminder
is whose subject was put 50 ms before.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import psycopg

from bench.duetime_side import Bench
from bench.environment import Environment, execute
from bench.measures.drain import drain_duetime, rate, work_off
from bench.measures.reminders import fill, time_reminders
from bench.processes import children
from bench.reading import Reading, Wrong, alternate, medians, percentile

_FEW = 10_000
_FIRST = 1_000_000_000
_STEP = 1_000_000
_SENT = "select count(*) from duetime.reminder where status = 'sent'"


def measure(environment: Environment) -> dict[str, Reading]:
    scale = environment.scale
    many, few = (
        _load(environment, name, count)
        for name, count in (("armed_many", scale.armed_reminders), ("armed_few", _FEW))
    )
    asked = alternate(scale, many=lambda: _ask(many), few=lambda: _ask(few))
    drained = alternate(
        scale,
        many=lambda: drain_duetime(many, scale.drain_jobs, empty=False),
        few=lambda: drain_duetime(few, scale.drain_jobs, empty=False),
    )
    reminders = scale.subjects // 10
    sent = alternate(scale, many=lambda: _send(many, reminders), few=lambda: _send(few, reminders))
    late, late_few = (
        percentile([late for _, late in time_reminders(environment, database)[0]], 0.99)
        for database in (many, few)
    )
    environment.drop("armed_many")
    environment.drop("armed_few")
    note = f"{scale.armed_reminders:,} armed"
    return {
        "reminders_10m_next_due_ms": medians(asked["many"], asked["few"], note),
        "reminders_10m_claim": medians(drained["many"], drained["few"], note),
        "reminders_10m_send": medians(sent["many"], sent["few"], note),
        "reminders_10m_lateness_p99_ms": Reading(late, late_few, note=note),
    }


def _load(environment: Environment, name: str, count: int) -> str:
    database = environment.database(name)

    async def put() -> None:
        app = Bench(database).app
        due = await app.now() + timedelta(days=90)
        await app.subjects.put("subject:1", due=due, remind=["-1d"])
        await app.close()

    asyncio.run(put())
    for start in range(0, count, _STEP):
        last = min(start + _STEP, count)
        execute(database, fill(_FIRST + start, _FIRST + last - 1))
    execute(database, "vacuum analyze", "checkpoint")
    return database


def _ask(database: str) -> float:
    """The median of the milliseconds in which it is known when the next one is due."""
    found = []
    with psycopg.connect(database, autocommit=True) as connection:
        for _ in range(200):
            began = time.perf_counter()
            connection.execute("select duetime.next_due()")
            found.append((time.perf_counter() - began) * 1e3)
    return percentile(found, 0.5)


def _send(database: str, reminders: int) -> float:
    """Reminders per second, from the first claim to the last one recorded."""
    [(before,)] = execute(database, _SENT)

    async def put() -> None:
        app = Bench(database).app
        due = await app.now() + timedelta(hours=1)
        rule = {"rule": "-1h", "past": "send_now"}
        subjects = [
            app.subjects.define(f"send:{before}:{number}", due=due, remind=[rule])
            for number in range(reminders)
        ]
        await app.subjects.put_many(subjects)
        await app.close()

    asyncio.run(put())
    execute(database, "checkpoint")
    with children(1, "worker", database=database) as workers:
        reports = work_off(workers, reminders)
    [(after,)] = execute(database, _SENT)
    if after - before != reminders:
        raise Wrong(f"{after - before} of {reminders} reminders were sent")
    return rate(reports, reminders)
