"""One row, written by plain SQL, never stops a queue: it is refused, or set aside by itself."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg
import pytest

from duetime import Duetime
from duetime.domain.jobs.job import UNREADABLE, JobState
from tests.conftest import Backend, query
from tests.waiting import until_true

on_postgres = pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
on_sqlite = pytest.mark.parametrize("backend", ["sqlite"], indirect=True)

JOB = (
    "insert into duetime.job (id, task, queue, priority, args, max_attempts, created_at)"
    " values (1, 'work', 'default', 5, '{}', 3, "
)
DUE = "insert into duetime.due (queue, priority, run_at, job_id, attempt) values "


def app_of(backend: Backend) -> Duetime:
    return Duetime(backend.url, lease="2s", heartbeat="500ms", rescue_every="200ms")


@on_postgres
@pytest.mark.parametrize(
    "statement",
    [
        f"{DUE} ('default', 5, 'infinity', 1, 0)",
        f"{DUE} ('default', 5, '-infinity', 1, 0)",
        f"{DUE} ('default', 5, '0044-03-15 BC', 1, 0)",
        f"{DUE} ('default', 5, now(), 1, 32767)",
        f"{DUE} ('default', 5, now(), 1, -1)",
        f"{DUE} ('default', 11, now(), 1, 0)",
        f"{JOB} now()); update duetime.job set expires_at = 'infinity'",
        f"{JOB} now()); update duetime.job set expires_at = '0044-03-15 BC'",
        f"{JOB} now()); update duetime.job set timeout = '1000000 years'",
        f"{JOB} now()); update duetime.job set timeout = '-1 second'",
        f"{JOB} now()); update duetime.job set max_attempts = 32767",
        "insert into duetime.queue (name, rate) values ('default', 5)",
        "insert into duetime.queue (name, running) values ('default', -5)",
        (
            "insert into duetime.schedule (name, target, timetable, next_run_at)"
            " values ('s', 'work', '{}', '-infinity')"
        ),
    ],
)
def test_what_cannot_be_read_is_refused(backend: Backend, statement: str) -> None:
    with pytest.raises(psycopg.errors.CheckViolation):
        query(backend, statement)


@on_postgres
def test_every_time_and_span_is_of_a_checked_type(backend: Backend) -> None:
    plain = query(
        backend,
        "select c.relname, a.attname from pg_attribute as a"
        " join pg_class as c on c.oid = a.attrelid"
        " where c.relnamespace = 'duetime'::regnamespace and c.relkind = 'r' and a.attnum > 0"
        " and c.relname not in ('migration', 'driven_clock')"
        " and a.atttypid in ('timestamptz'::regtype, 'interval'::regtype)",
    )

    assert plain == []


@on_sqlite
@pytest.mark.parametrize(
    "statement",
    [
        f"{DUE} ('default', 5, 9223372036854775807, 1, 0)",
        f"{DUE} ('default', 5, -9223372036854775807, 1, 0)",
        f"{DUE} ('default', 5, 0, 1, 9223372036854775807)",
        f"{DUE} ('default', 5, 0, 1, -1)",
        f"{DUE} ('default', 11, 0, 1, 0)",
        (
            "insert into duetime.job (id, task, queue, priority, args, max_attempts, created_at,"
            " expires_at) values (1, 'work', 'default', 5, '{}', 3, 0, 9223372036854775807)"
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_sqlite(backend: Backend, statement: str) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        query(backend, statement)


def without_checks(backend: Backend) -> None:
    """As a database in which somebody dropped them."""
    for domain in ("moment", "span", "attempts"):
        query(backend, f"alter domain duetime.{domain} drop constraint {domain}_check")


@pytest.mark.parametrize("limited", [False, True])
@on_postgres
@pytest.mark.parametrize(
    "poison",
    [
        "update duetime.job set expires_at = 'infinity' where id = {id}",
        "update duetime.job set expires_at = '0044-03-15 BC' where id = {id}",
        "update duetime.job set timeout = '9000000 years' where id = {id}",
        "update duetime.due set attempt = 32767 where job_id = {id}",
    ],
)
async def test_a_row_that_cannot_be_read_is_set_aside_by_itself(
    backend: Backend, poison: str, limited: bool
) -> None:
    app = app_of(backend)
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    if limited:
        await app.queues.limit("default", running=10)
    jobs = await app.enqueue_many([work.job(n) for n in range(5)])
    without_checks(backend)
    query(backend, poison.format(id=jobs[2].id))
    async with app.worker():
        await until_true(lambda: len(ran) == 4)
        await (await work.enqueue(5)).result(timeout="30s")
        put_back = await (await app.store()).unpark(["work"], ["default"])
        [(job_id, reason)] = query(backend, "select job_id, reason from duetime.parked")
        query(
            backend, f"update duetime.job set timeout = null, expires_at = null where id = {job_id}"
        )
        sentence = (await app.jobs.explain(job_id)).sentence
        await app.jobs.cancel(job_id)
        await app.jobs.requeue(job_id)
        await jobs[2].result(timeout="30s")
    await app.close()

    assert put_back == 0
    assert ran[-1] == 2
    assert sorted(ran) == [0, 1, 2, 3, 4, 5]
    assert job_id == jobs[2].id
    assert UNREADABLE in str(reason)
    assert "correct the row" in sentence


@on_postgres
@pytest.mark.parametrize("moment", ["-infinity", "infinity", "0044-03-15 BC"])
async def test_a_due_time_that_no_client_reads_holds_up_nobody(
    backend: Backend, moment: str
) -> None:
    app = app_of(backend)
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    jobs = await app.enqueue_many([work.job(n) for n in range(3)])
    without_checks(backend)
    query(backend, f"update duetime.due set run_at = '{moment}' where job_id = {jobs[1].id}")
    async with app.worker(poll="100ms"):
        await until_true(lambda: {0, 2} <= set(ran))
        await (await work.enqueue(3)).result(timeout="30s")
    await app.close()


@on_sqlite
async def test_a_text_that_is_no_text_is_set_aside_by_itself(backend: Backend) -> None:
    app = app_of(backend)
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    jobs = await app.enqueue_many([work.job(n) for n in range(5)])
    with closing(sqlite3.connect(backend.url.removeprefix("sqlite:///"))) as lite:
        lite.execute(
            "update duetime_job set partition = cast(x'ff' as text) where id = ?", [jobs[2].id]
        )
        lite.commit()
    async with app.worker():
        await until_true(lambda: len(ran) == 4)
        await (await work.enqueue(5)).result(timeout="30s")
        [(job_id, reason)] = query(backend, "select job_id, reason from duetime.parked")
    await app.close()

    assert job_id == jobs[2].id
    assert UNREADABLE in str(reason)


@on_sqlite
async def test_numbers_that_are_no_time_hold_up_nobody(backend: Backend) -> None:
    app = app_of(backend)
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    jobs = await app.enqueue_many([work.job(n) for n in range(3)])
    with closing(sqlite3.connect(backend.url.removeprefix("sqlite:///"))) as lite:
        lite.execute("pragma ignore_check_constraints = on")
        lite.execute("update duetime_job set expires_at = ? where id = ?", [2**63 - 1, jobs[0].id])
        lite.execute("update duetime_due set run_at = ? where job_id = ?", [-(2**62), jobs[1].id])
        lite.commit()
    async with app.worker():
        await until_true(lambda: sorted(ran) == [0, 1, 2])
    states = {job.state for job in await app.jobs.list()}
    await app.close()

    assert states == {JobState.COMPLETED}
