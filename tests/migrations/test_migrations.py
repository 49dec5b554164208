"""The schema: built in steps, up and down, by many at once, on a database with data."""

from __future__ import annotations

import asyncio
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import psycopg
import pytest

from duetime import Duetime, Exponential
from duetime.errors import InvalidDatabaseURL, InvalidInput, SchemaMismatch
from duetime.settings import load_settings
from duetime.storage.migrations import (
    Migrator,
    downgrade,
    read_status,
    upgrade,
)
from duetime.wiring import make_migrator
from tests import effects
from tests.conftest import Backend
from tests.waiting import until

CATALOG = """
select 'column', c.relname, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull::text
from pg_attribute a join pg_class c on c.oid = a.attrelid
where c.relnamespace = 'duetime'::regnamespace and a.attnum > 0 and not a.attisdropped
union all
select 'index', c.relname, '', pg_get_indexdef(c.oid), ''
from pg_class c where c.relnamespace = 'duetime'::regnamespace and c.relkind = 'i'
union all
select 'function', proname, '', md5(pg_get_functiondef(oid)), ''
from pg_proc where pronamespace = 'duetime'::regnamespace
order by 1, 2, 3, 4
"""


def migrator_of(url: str) -> Migrator:
    return make_migrator(load_settings({"database": url}, environment={}))


def catalog(backend: Backend) -> list[object]:
    if backend.is_postgres:
        return effects.run(backend.url, CATALOG)
    return effects.run(backend.url, "select type, name, sql from sqlite_master order by 1, 2")


@pytest.mark.usefixtures("second_migration")
def test_step_by_step_gives_the_same_schema_as_at_once(backend: Backend) -> None:
    migrator = migrator_of(backend.url)
    latest = len(migrator.migrations)
    upgrade(migrator)
    at_once = catalog(backend)
    downgrade(migrator, 0)
    assert read_status(migrator).version == 0
    for version in range(1, latest + 1):
        upgrade(migrator, version)
        assert read_status(migrator).version == version
    step_by_step = catalog(backend)

    assert step_by_step == at_once


@pytest.mark.usefixtures("second_migration")
def test_down_and_up_again_at_every_version(backend: Backend) -> None:
    migrator = migrator_of(backend.url)
    upgrade(migrator)
    whole = catalog(backend)
    for version in reversed(range(len(migrator.migrations))):
        downgrade(migrator, version)
        upgrade(migrator)
        assert catalog(backend) == whole


@pytest.mark.usefixtures("second_migration")
async def test_an_old_database_with_jobs_is_upgraded_and_keeps_them(backend: Backend) -> None:
    """What was stored under the first version runs under the last."""
    migrator = migrator_of(backend.url)
    upgrade(migrator, 1)
    values = "(id, task, queue, priority, args, max_attempts, created_at)"
    if backend.is_postgres:
        effects.run(
            backend.url,
            f"insert into duetime.job {values} values (7, 'old', 'default', 5, '{{}}', 3, now())",
        )
        effects.run(
            backend.url,
            "insert into duetime.due (queue, priority, run_at, job_id)"
            " values ('default', 5, now(), 7)",
        )
    else:
        effects.run(
            backend.url,
            f"insert into duetime_job {values} values (7, 'old', 'default', 5, '{{}}', 3, 1)",
        )
        effects.run(
            backend.url,
            "insert into duetime_due (queue, priority, run_at, job_id) values ('default', 5, 1, 7)",
        )
    upgrade(migrator)
    app = Duetime(backend.url)
    ran = asyncio.Event()

    @app.task(name="old")
    async def old() -> None:
        ran.set()

    async with app.worker():
        await asyncio.wait_for(ran.wait(), 30)
    job = await app.jobs.get(7)
    await app.close()

    assert job.state == "completed"


TABLES = {
    True: "select table_name from information_schema.tables"
    " where table_schema = 'duetime' and table_type = 'BASE TABLE'",
    False: "select name from sqlite_master where type = 'table' and name glob 'duetime_*'",
}


def contents(backend: Backend) -> dict[str, list[str]]:
    """Every row of every table of ours, but for those of the migrations."""
    names = sorted(row[0] for row in effects.run(backend.url, TABLES[backend.is_postgres]))
    schema = "duetime." if backend.is_postgres else ""
    return {
        name: sorted(map(repr, effects.run(backend.url, f"select * from {schema}{name}")))
        for name in names
        if not name.endswith(("migration", "installation", "note"))
    }


async def fill(app: Duetime) -> None:
    """Jobs in every state, a schedule, and a subject with reminders."""

    @app.task(retry=Exponential("1h", max_attempts=2))
    async def work(fail: bool = False) -> str:
        if fail:
            raise RuntimeError("it's broken")
        return "it's done"

    @app.schedule("0 9 * * 1-5", tz="Europe/Berlin")
    @app.task
    async def digest() -> None: ...

    await work.enqueue()
    await work.using(max_attempts=1).enqueue(fail=True)
    await work.using(key="held", hold="1h").enqueue()
    await (await work.using(delay="1h").enqueue()).cancel()
    retrying = await work.enqueue(fail=True)
    async with app.worker():

        async def is_retrying() -> bool:
            return (await app.jobs.get(retrying.id)).state == "retrying"

        await until(is_retrying)
    await work.using(delay="1h", priority=1).enqueue()
    await app.queues.pause("mail", reason="it's Sunday")
    await app.queues.limit("calls", running=3)
    await app.recipients.put("ann", channels={"email": "ann@example.org"}, tz="Europe/Berlin")
    await app.scopes.put("guild:1", remind=["-1d", "-1h"])
    await app.subjects.put(
        "game:42", scope="guild:1", due=await app.now() + timedelta(days=7), recipients=["ann"]
    )


@pytest.mark.usefixtures("second_migration")
async def test_a_filled_database_keeps_every_row_down_and_up(backend: Backend) -> None:
    migrator = migrator_of(backend.url)
    upgrade(migrator)
    app = Duetime(backend.url)
    await fill(app)
    await app.close()
    before = contents(backend)
    downgrade(migrator, 1)
    upgrade(migrator)

    assert contents(backend) == before
    filled = {name.removeprefix("duetime_") for name, rows in before.items() if rows}
    assert filled >= {
        "job", "due", "attempt", "job_key", "queue", "schedule", "schedule_tick", "scope",
        "subject", "recipient", "reminder", "audit",
    }  # fmt: skip


async def test_functions_are_replaced_when_they_changed(pg_url: str) -> None:
    migrator = migrator_of(pg_url)
    first = upgrade(migrator)
    again = upgrade(migrator)
    changed = "create or replace function duetime.wake(queue text, run_at timestamptz default null)"
    effects.run(
        pg_url,
        f"{changed} returns void language sql as $$ select $$; "
        "grant execute on function duetime.wake to pg_monitor",
    )
    effects.run(pg_url, "update duetime.installation set functions = 'of an older release'")
    older = read_status(migrator)
    app = Duetime(pg_url, migrate=False)
    await app.now()
    await app.close()
    replaced = upgrade(migrator)

    assert (first.functions, again.functions, replaced.functions) == (True, False, True)
    assert (older.current, read_status(migrator).current) == (False, True)
    [(body, rights)] = effects.run(
        pg_url, "select prosrc, proacl::text from pg_proc where oid = 'duetime.wake'::regproc"
    )
    assert "barrier" in body
    assert "pg_monitor" in rights, "grants on functions outlive an upgrade"


@pytest.mark.usefixtures("second_migration")
def test_functions_follow_the_last_migration(pg_url: str) -> None:
    migrator = migrator_of(pg_url)

    assert not upgrade(migrator, 1).functions
    assert upgrade(migrator).functions


def test_many_processes_may_upgrade_at_once(backend: Backend) -> None:
    with ThreadPoolExecutor(8) as pool:
        done = list(pool.map(lambda _: upgrade(migrator_of(backend.url)), range(8)))

    applied = [migration.version for one in done for migration in one.migrations]
    assert sorted(applied) == list(range(1, len(applied) + 1)), "each exactly once"
    assert sum(one.functions for one in done) == backend.is_postgres
    assert read_status(migrator_of(backend.url)).current


def test_many_may_upgrade_at_once_where_transactions_are_serializable_by_default(
    pg_url: str,
) -> None:
    """A snapshot taken before the lock would not show what the one before has made."""
    with psycopg.connect(pg_url, autocommit=True) as connection:
        database = connection.info.dbname
        connection.execute(
            f"alter database {database} set default_transaction_isolation = 'serializable'".encode()
        )
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda _: upgrade(migrator_of(pg_url)), range(4)))

    assert sorted(bool(one.migrations) for one in done) == [False, False, False, True]


def test_sqlite_file_is_made_in_wal_mode(tmp_path: Path) -> None:
    path = tmp_path / "duetime.db"
    upgrade(migrator_of(f"sqlite:///{path}"))

    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("pragma journal_mode").fetchone() == ("wal",)


async def test_a_newer_schema_is_refused(backend: Backend) -> None:
    migrator = migrator_of(backend.url)
    upgrade(migrator)
    table = "duetime.migration" if backend.is_postgres else "duetime_migration"
    if backend.is_postgres:
        effects.run(backend.url, f"insert into {table} (version, name) values (99, 'later')")
    else:
        columns = "(version, name, applied_at)"
        effects.run(backend.url, f"insert into {table} {columns} values (99, 'later', 1)")
    app = Duetime(backend.url)

    with pytest.raises(SchemaMismatch, match=r"version 99, newer than this Duetime knows"):
        await app.now()
    with pytest.raises(SchemaMismatch, match="newer"):
        upgrade(migrator)
    with pytest.raises(SchemaMismatch, match="newer"):
        downgrade(migrator, 0)


@pytest.mark.usefixtures("second_migration")
async def test_an_older_schema_says_what_to_run(backend: Backend) -> None:
    upgrade(migrator_of(backend.url), 1)

    with pytest.raises(SchemaMismatch, match="duetime db upgrade"):
        await Duetime(backend.url, migrate=False).now()


async def test_an_empty_database_says_what_to_run(pg_url: str) -> None:
    with pytest.raises(SchemaMismatch, match="duetime db init"):
        await Duetime(pg_url).now()


def test_a_version_that_does_not_exist_is_refused(backend: Backend) -> None:
    with pytest.raises(InvalidInput, match="no schema version 99"):
        upgrade(migrator_of(backend.url), 99)


def test_downgrade_of_an_empty_database_changes_nothing(backend: Backend) -> None:
    assert downgrade(migrator_of(backend.url), 0) == []
    if backend.is_postgres:
        exists = effects.run(backend.url, "select to_regnamespace('duetime') is not null")
        assert exists == [(False,)]


async def test_two_schemas_in_one_database_are_apart(pg_url: str) -> None:
    first = Duetime(pg_url, migrate=True)
    second = Duetime(pg_url, migrate=True, schema="other_app")
    results = []

    for app, name in ((first, "first"), (second, "second")):

        @app.task(name="who")
        async def who(name: str = name) -> str:
            return name

        async with app.worker():
            results.append(await (await who.enqueue()).result("30s"))
    jobs = [len(await app.jobs.list()) for app in (first, second)]
    for app in (first, second):
        await app.close()

    assert results == ["first", "second"]
    assert jobs == [1, 1]


@pytest.mark.parametrize("schema", ["a-b", "Upper", "1st", "x" * 41, "a;drop", ""])
def test_a_schema_name_that_needs_quoting_is_refused(pg_url: str, schema: str) -> None:
    settings = load_settings({"database": pg_url, "schema": schema}, environment={})

    with pytest.raises(InvalidDatabaseURL, match="schema name"):
        make_migrator(settings)


def test_a_reserved_word_is_refused(pg_url: str) -> None:
    settings = load_settings({"database": pg_url, "schema": "user"}, environment={})

    with pytest.raises(InvalidDatabaseURL, match="reserved word"):
        upgrade(make_migrator(settings))
    with psycopg.connect(pg_url) as connection:
        found = connection.execute("select 1 from pg_namespace where nspname = 'user'").fetchall()
    assert found == []
