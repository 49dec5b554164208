"""Reminders: many armed at once, a million that wait, one that is due in a moment, a tracked table.

100,000 subjects with two rules are put, beside the bare inserts of as many rows. Then their scope
gets another rule: the call returns, and workers arm them again. Then there are a million reminders
that wait. Jobs are worked off beside none waiting, and subjects are put 50 ms before their
reminder, beside jobs put so.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta

import psycopg

from bench.duetime_side import Bench
from bench.environment import Environment, duetime_worker, execute
from bench.measures.drain import drain_duetime
from bench.processes import Child
from bench.reading import Reading, Wrong, alternate, medians, percentile
from bench.steal import Steal, say_undisturbed
from duetime.reminders.rearm import rearm_stale

_AHEAD = timedelta(milliseconds=50)
_HOUR = timedelta(hours=1)
Timed = tuple[float, float]
"""When it was due, and the milliseconds that it was late."""
_RAW = """
create schema bare;
create table bare.reminder (like duetime.reminder including all);
create table bare.job (like duetime.job including all);
create table bare.due (like duetime.due including all);
create table bare.subject (like duetime.subject including all);
create table bare.audit (like duetime.audit including all);
"""
_BARE_SUBJECTS = """
insert into bare.subject (id, ref, scope, due_at)
select n, 'subject:' || n, 'all', now() + interval '90 days' from generate_series(1, {rows}) as n
"""
_BARE_AUDIT = """
insert into bare.audit (id, actor, action, entity, after)
select n, 'unknown', 'subject.put', 'subject:subject:' || n, a.after
from generate_series(1, {rows}) as n, (select after from duetime.audit
                                       where action = 'subject.put' limit 1) as a
"""
_BYTES = """
select sum(pg_total_relation_size(name::regclass))::float
    / (select count(*) from duetime.reminder where status = 'armed')
from unnest(%s::text[]) as name
"""
# Keys begin with a time, as those of reminders do.
ARM = """
with made as (
    insert into {schema}.reminder (id, key, subject_id, due_at, rule, time, recipient,
                              revision, run_at, status, job_id)
    select n, (to_hex(4000000000 + n / 1000) || md5(n::text))::char(32)::uuid, {subject}, at,
        {rule}, at, '', 1, at, 'armed', n
    from (select n, now() + interval '89 days' + n * interval '1 ms' as at
          from generate_series({first}, {last}) as n) as many
    returning id, run_at
), jobs as (
    insert into {schema}.job (id, task, queue, priority, args, max_attempts)
    select id, 'duetime.remind', 'default', 5, json_build_object('reminder', id), 3
    from made
)
insert into {schema}.due (queue, priority, run_at, job_id)
select 'default', 5, run_at, id from made
"""
_TABLE = """
create table {name} (id bigint primary key, starts timestamptz, title text);
insert into {name} select n, now() + interval '30 days', 'game ' || n
from generate_series(1, {rows}) as n;
"""
_MOVED = ("subject", "audit", "reminder", "job", "due", "attempt")
_COPIES = """
create schema same;
create table same.game (like game including all);
insert into same.game select * from game;
"""
_COPY = """
create table same.{name} (like duetime.{name} including all);
insert into same.{name} select * from duetime.{name};
"""
# What the moves of single rows have left.
_ONLY_ARMED = """
truncate same.attempt;
delete from same.reminder where status <> 'armed';
delete from same.job where id not in (select job_id from same.reminder);
"""
# What a move of every row writes, in as few statements as there are tables.
_MOVE_BARE = """
update same.game set starts = starts + interval '1 hour';
update same.subject
set due_at = due_at + interval '1 hour', revision = revision + 1, updated_at = now();
insert into same.audit (id, actor, action, entity, before, after)
select 1000000000 + id, 'trigger: bench', 'subject.put', 'subject:' || ref, a.body, a.body
from same.subject, (select after as body from duetime.audit
                    where entity like 'subject:%' limit 1) as a;
update same.reminder set status = 'superseded', ended_at = now(),
    reason = '{"code": "subject_moved", "facts": {"to": "2026-03-07T18:00:00Z"}}';
delete from same.due;
insert into same.attempt (job_id, token, attempt, outcome, finished_at, error_code, facts)
select id, id, 0, 'superseded', now(), 'subject_moved', '{"to": "2026-03-07T18:00:00Z"}'
from same.job;
with made as (
    insert into same.reminder (id, key, subject_id, due_at, rule, time, recipient, revision, run_at,
                               status, job_id)
    select id + 1000000000,
        (to_hex(4000000000 + id / 1000) || md5(id::text))::char(32)::uuid, subject_id,
        due_at + interval '1 hour', rule, time + interval '1 hour', recipient,
        revision + 1, run_at + interval '1 hour', 'armed',
        job_id + 1000000000
    from same.reminder
    returning id, job_id, run_at, due_at
), jobs as (
    insert into same.job (id, task, queue, priority, args, max_attempts, expires_at)
    select job_id, 'duetime.remind', 'default', 5, json_build_object('reminder', id), 3, due_at
    from made
)
insert into same.due (queue, priority, run_at, job_id)
select 'default', 5, run_at, job_id from made;
"""


def measure(environment: Environment) -> dict[str, Reading]:
    database = environment.database("reminders")
    armed = asyncio.run(_arm(database, environment.scale.subjects))
    first = 1_000_000_000
    last = first + environment.scale.future_jobs - environment.scale.subjects
    execute(database, fill(first, last), "vacuum analyze", "checkpoint")
    plain = environment.database("plain")
    jobs = environment.scale.drain_jobs
    drained = alternate(
        environment.scale,
        crowded=lambda: drain_duetime(database, jobs, empty=False),
        plain=lambda: drain_duetime(plain, jobs),
    )
    execute(database, "vacuum analyze", "checkpoint")
    with Steal() as steal:
        reminded, timed = time_reminders(environment, database)
    late = [late for _, late in reminded]
    held_up = [steal.held_up(due, late) for due, late in reminded]
    environment.drop("reminders")
    return {
        **armed,
        "drain_1m_reminders": medians(drained["crowded"], drained["plain"]),
        **{
            f"reminder_lateness_p{share}_ms": Reading(
                percentile(late, share / 100),
                percentile([late for _, late in timed], share / 100),
                note=f"latest {max(late):.1f} ms{say_undisturbed(late, held_up)}"
                if share == 99
                else "",
            )
            for share in (50, 99)
        },
    }


def fill(first: int, last: int) -> str:
    """Arms reminders of the first subject, with these ids, after 89 days."""
    return ARM.format(
        schema="duetime",
        subject="(select min(id) from duetime.subject)",
        rule="(select min(id) from duetime.rule)",
        first=first,
        last=last,
    )


async def _arm(database: str, subjects: int) -> dict[str, Reading]:
    """Subjects put and armed again, beside bare inserts; what a change takes; what one needs."""
    app = Bench(database).app
    due = await app.now() + timedelta(days=90)
    await app.scopes.put("all", remind=["-1h", "-1d"])
    seconds = 0.0
    for start in range(0, subjects, 10_000):
        some = [
            app.subjects.define(f"subject:{number}", due=due, scope="all")
            for number in range(start, min(start + 10_000, subjects))
        ]
        began = time.perf_counter()
        await app.subjects.put_many(some)
        seconds += time.perf_counter() - began
    began = time.perf_counter()
    await rearm_stale(app)
    all_seconds = seconds + time.perf_counter() - began
    if _count_armed(database) != 2 * subjects:
        raise Wrong(f"{_count_armed(database)} reminders are armed for {subjects} subjects")
    bare, audit = _insert_bare(database, subjects)
    put_many = Reading(subjects / seconds, subjects / (bare + audit))
    put_many_armed = Reading(subjects / all_seconds, subjects / (bare + audit))
    execute(database, "vacuum analyze", "checkpoint")
    size = Reading(
        _bytes(database, "duetime.reminder", "duetime.job", "duetime.due"),
        _bytes(database, "duetime.job", "duetime.due"),
    )
    with psycopg.connect(database) as connection:
        began = time.perf_counter()
        connection.execute("update duetime.scope set updated_at = now() where ref = 'all'")
        connection.commit()
        write = time.perf_counter() - began
    began = time.perf_counter()
    put = await app.scopes.put("all", remind=["-1h", "-2d"])
    change = time.perf_counter() - began
    await rearm_stale(app)
    seconds = time.perf_counter() - began
    await app.close()
    [(armed,)] = execute(
        database,
        "select count(*) from duetime.reminder as r join duetime.rule as u on u.id = r.rule"
        " where r.status = 'armed' and u.name in ('1h-before', '2d-before')",
    )
    if put.affected != min(subjects, 200_000) or armed != 2 * subjects:
        raise Wrong(f"{put.affected} of {subjects} subjects were armed, with {armed} reminders")
    return {
        "put_many_100k": put_many,
        "put_many_armed_100k": put_many_armed,
        "reminder_bytes": size,
        "scope_change_ms": Reading(change * 1e3, write * 1e3),
        "rearm_100k": Reading(
            subjects / seconds, subjects / bare, note=f"one of two rules; {seconds:.1f} s"
        ),
    }


async def _arm_rest(database: str) -> None:
    """Arm what a large statement has left to workers, as they do."""
    app = Bench(database).app
    await rearm_stale(app)
    await app.close()


def _count_armed(database: str) -> int:
    [(armed,)] = execute(database, "select count(*) from duetime.reminder where status = 'armed'")
    return int(armed)


def _insert_bare(database: str, subjects: int) -> tuple[float, float]:
    """Insert as many rows with the same indexes, and nothing else. Returns the seconds for subjects
    and what is armed, and for the audit, which is not written when they are armed again."""
    arm = ARM.format(schema="bare", subject="n", rule=1, first=1, last=2 * subjects)
    with psycopg.connect(database) as connection:
        connection.execute(_RAW)
        connection.commit()
        armed = _time(connection, _BARE_SUBJECTS.format(rows=subjects), arm)
        audit = _time(connection, _BARE_AUDIT.format(rows=subjects))
        connection.execute("drop schema bare cascade")
    return armed, audit


def _bytes(database: str, *tables: str) -> float:
    """What an armed reminder takes of these tables and their indexes."""
    with psycopg.connect(database) as connection:
        found = connection.execute(_BYTES, [list(tables)]).fetchone()
        assert found is not None
        return float(found[0])


def time_reminders(environment: Environment, database: str) -> tuple[list[Timed], list[Timed]]:
    """Of reminders whose subject is put 50 ms before, and of such jobs."""
    puts = environment.scale.pickups // 2

    async def ask(worker: Child) -> tuple[list[Timed], list[Timed]]:
        bench = Bench(database)
        subjects = bench.app.subjects

        async def remind(number: int) -> None:
            due = await bench.app.now() + _HOUR + _AHEAD
            # On a busy machine its time may be past when it is put: then it is sent at once.
            rule = {"rule": "-1h", "past": "send_now"}
            await subjects.put(f"soon:{number}", due=due, remind=[rule])

        async def time_job(number: int) -> None:
            at = await bench.app.now() + _AHEAD
            await bench.timer.using(at=at).enqueue(due=at.timestamp())

        found: tuple[list[Timed], list[Timed]] = [], []
        for number in range(puts):
            for timed, put in zip(found, (remind, time_job), strict=True):
                timed.append(await _one(worker, put, number))
        await bench.app.close()
        return found

    with duetime_worker(database) as worker:
        found = asyncio.run(ask(worker))
    for timed in found:
        early = -min(late for _, late in timed)
        if early > 0:
            raise Wrong(f"one began {early:.3f} ms early")
    return found


async def _one(worker: Child, put: Callable[[int], Awaitable[None]], number: int) -> Timed:
    await asyncio.sleep(random.uniform(0.01, 0.03))
    await put(number)
    while True:
        said = await asyncio.to_thread(worker.hear)
        if "late" in said:
            return time.time() - said["late"], said["late"] * 1e3


def measure_tracked(environment: Environment) -> dict[str, Reading]:
    """All rows of a tracked table moved by one UPDATE, beside the same writes without Duetime; one
    row, beside one of an untracked table."""
    database, rows = environment.database("tracked"), environment.scale.subjects
    execute(database, _TABLE.format(name="game", rows=rows), _TABLE.format(name="bare", rows=rows))

    async def track() -> None:
        app = Bench(database).app
        await app.tables.put("game", id="id", due="starts", data=["title"], remind=["-1h"])
        await app.close()
        await _arm_rest(database)

    asyncio.run(track())
    execute(database, "vacuum analyze", "checkpoint")
    single = {table: _move_single(database, table, rows) for table in ("game", "bare")}
    copies = [_COPY.format(name=name) for name in _MOVED]
    execute(database, _COPIES, *copies, _ONLY_ARMED, "vacuum analyze", "checkpoint")
    # Once: it takes seconds.
    bare = rows / _time_on(database, _MOVE_BARE)
    execute(database, "drop schema same cascade", "checkpoint")
    update = _time_on(database, "update game set starts = starts + interval '1 hour'")
    began = time.perf_counter()
    asyncio.run(_arm_rest(database))
    seconds = update + time.perf_counter() - began
    if _count_armed(database) != rows:
        raise Wrong(f"{_count_armed(database)} reminders are armed for {rows} rows")
    environment.drop("tracked")
    return {
        "track_update_100k": Reading(rows / update, bare),
        "track_armed_100k": Reading(rows / seconds, bare),
        "track_move_p50_ms": Reading(single["game"], single["bare"]),
    }


def _move_single(database: str, table: str, rows: int) -> float:
    """The median of the milliseconds in which one row is moved."""
    found = []
    with psycopg.connect(database, autocommit=True) as connection:
        for number in random.sample(range(1, rows + 1), 200):
            began = time.perf_counter()
            move = f"update {table} set starts = starts + interval '1 hour' where id = {number}"
            connection.execute(move.encode())
            found.append((time.perf_counter() - began) * 1e3)
    return percentile(found, 0.5)


def _time_on(database: str, statements: str) -> float:
    with psycopg.connect(database) as connection:
        return _time(connection, statements)


def _time(connection: psycopg.Connection, *statements: str) -> float:
    """The seconds that a transaction takes."""
    began = time.perf_counter()
    for statement in statements:
        connection.execute(statement.encode())
    connection.commit()
    return time.perf_counter() - began
