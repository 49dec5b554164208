"""What each role of `duetime db roles` can do and cannot, with real roles; and without rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from duetime import Duetime, Flow, Reminder, Sent
from duetime.domain.jobs.job import JobState
from duetime.errors import InvalidInput, StorageError
from duetime.reminders.rearm import rearm_stale
from duetime.settings import Settings
from duetime.storage.access.pruning import prune_access
from duetime.storage.migrations import downgrade, upgrade
from duetime.storage.postgres.roles import PostgresRoles
from duetime.wiring import make_migrator
from tests.conftest import fresh_database
from tests.engine.jobs.test_worker import reaches
from tests.servers import PostgresServer
from tests.waiting import until_true

GROUPS = ("worker", "operator", "producer", "tracker", "reader", "access")
SECRET = {
    "account", "api_token", "idempotency", "installation_secret", "login_failure", "session",
}  # fmt: skip
"""Tables that only the role `access` may write, and whose hashes only it may read."""
TABLES = (
    "select c.relname from pg_class as c where c.relnamespace = 'duetime'::regnamespace"
    " and c.relkind in ('r', 'v')"
)
RIGHTS = ("select", "insert", "update", "delete", "truncate", "references", "trigger")


@contextmanager
def login(url: str, name: str, *groups: str) -> Iterator[str]:
    """A role of these groups, and the URL under which it connects."""
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute(f"create role {name} login")
        for group in groups:
            owner.execute(f"grant {group} to {name}")
        try:
            given: dict[str, Any] = conninfo_to_dict(url)
            yield f"postgresql://{name}@{given['host']}:{given['port']}/{given['dbname']}"
        finally:
            owner.execute(f"drop owned by {name}")
            owner.execute(f"drop role {name}")


@contextmanager
def roles(url: str) -> Iterator[None]:
    made = PostgresRoles(url, schema="duetime", prefix="duetime")
    made.apply()
    made.apply()
    try:
        yield
    finally:
        with psycopg.connect(url, autocommit=True) as owner:
            for group in GROUPS:
                owner.execute(f"drop owned by duetime_{group}; drop role duetime_{group}")


@pytest.fixture
def granted(pg_url: str) -> Iterator[str]:
    with roles(pg_url):
        yield pg_url


def rights_of(url: str, name: str) -> set[tuple[str, str]]:
    """Each table, and what the role may do with it."""
    with psycopg.connect(url) as owner:
        return {
            (table, right)
            for (table,) in owner.execute(TABLES).fetchall()
            for right in RIGHTS
            if owner.execute(
                "select has_table_privilege(%s, 'duetime.' || %s, %s)", [name, table, right]
            ).fetchone()
            == (True,)
        }


def refused(url: str, *statements: str) -> list[str]:
    """The statements that this role may run, of those that it should not."""
    run = []
    for statement in statements:
        with psycopg.connect(url) as connection:
            try:
                connection.execute(statement.encode())
            except psycopg.errors.InsufficientPrivilege:
                continue
            run.append(statement)
    return run


# Producers


async def test_a_producer_enqueues_in_every_way(granted: str) -> None:
    with login(granted, "web", "duetime_producer") as url:
        app = Duetime(url)

        @app.task(name="work")
        async def work(n: int) -> None: ...

        first = await work.using(key="a").enqueue(1)
        again = await work.using(key="a", on_conflict="replace").enqueue(2)
        many = await app.enqueue_many(work.job(n) for n in range(1500))
        async with await psycopg.AsyncConnection.connect(url) as tx:
            inside = await work.using(tx=tx).enqueue(3)
        with psycopg.connect(url) as connection:
            connection.execute("select duetime.enqueue('work', '{\"n\": 4}')")
        await app.close()
    with psycopg.connect(granted) as owner:
        [count] = owner.execute("select count(*) from duetime.due").fetchone() or ()

    assert again.id == first.id
    assert len(many) == 1500
    assert inside.created
    assert count == 1503


async def test_a_producer_starts_and_signals_flows_in_every_way(granted: str) -> None:
    def declare(app: Duetime) -> Any:
        @app.flow(name="order")
        async def order(flow: Flow, order_id: int) -> list[Any]:
            return [order_id, await flow.wait_for("approved")]

        return order

    with login(granted, "web", "duetime_producer") as url:
        web = Duetime(url)
        first = await declare(web).using(key="order:1").start(1)
        await first.signal("approved", "by Python")
        with psycopg.connect(url) as connection:
            [second] = (
                connection.execute(
                    "select duetime.start_flow('order', '{\"order_id\": 2}', key => 'order:2')"
                ).fetchone()
                or ()
            )
            sent = connection.execute(
                "select duetime.signal_flow(%s, 'approved', '\"by SQL\"')", [second]
            ).fetchone()
        await web.close()
        rights = rights_of(granted, "web")
        ran = refused(
            url,
            "select * from duetime.flow_step",
            "select * from duetime.flow_signal",
            f"select duetime._wake_runs('{{{second}}}')",
        )
    app = Duetime(granted)
    declare(app)
    async with app.worker():
        results = [await app.flows[run].result() for run in (first.id, second)]
    with psycopg.connect(granted) as owner:
        senders = owner.execute("select sent_by from duetime.flow_signal order by id").fetchall()
    await app.close()

    assert sent == (True,)
    assert results == [[1, "by Python"], [2, "by SQL"]]
    assert senders == [("unknown",), ("role:web",)]
    assert rights == set()
    assert ran == []


def test_a_producer_has_no_right_on_any_table(granted: str) -> None:
    with login(granted, "web", "duetime_producer") as url:
        rights = rights_of(granted, "web")
        ran = refused(
            url,
            "select nextval('duetime.job_id_seq')",
            'select duetime.complete(\'{"job": 1, "token": 1}\')',
            "select * from duetime.claim_limited(1, 'default', 1)",
            "select duetime.track_define('t', 'public.t', '{}', 'web')",
            "select duetime.schedule('s', 'work', '* * * * *')",
            "create table duetime.mine (x integer)",
            "create function duetime.mine() returns void language sql as ''",
        )

    assert rights == set()
    assert ran == []


@pytest.mark.parametrize(
    "job",
    [
        "'duetime.remind', '{\"reminder\": 1}'",
        "'duetime.rearm'",
        "'work', key => 'tick:nightly@2026-11-16T03:00:00Z'",
        "'work', key => 'flow:1:1'",
        "'work', key => 'flow-undo:1'",
    ],
)
@pytest.mark.parametrize("function", ["enqueue", "start_flow"])
def test_a_producer_cannot_enqueue_what_is_ours(granted: str, function: str, job: str) -> None:
    with login(granted, "web", "duetime_producer") as url, psycopg.connect(url) as connection:
        with pytest.raises(psycopg.errors.InvalidParameterValue, match="reserved"):
            connection.execute(f"select duetime.{function}({job})")


def test_a_planted_function_or_operator_does_not_run_with_the_owners_rights(granted: str) -> None:
    plant = """
        create schema evil;
        create table evil.seen (who text);
        grant insert on evil.seen to public;
        create function evil.note() returns void language sql as
            'insert into evil.seen values (current_user)';
        create function evil.json_typeof(json) returns text language sql as
            'select evil.note(); select pg_catalog.json_typeof($1)';
        create function evil.btrim(text) returns text language sql as
            'select evil.note(); select pg_catalog.btrim($1)';
        create function evil.gt(timestamptz, timestamptz) returns boolean language sql as
            'select evil.note(); select $1 operator(pg_catalog.>) $2';
        create operator evil.> (leftarg = timestamptz, rightarg = timestamptz, procedure = evil.gt);
        create temp table job (id bigint);
    """
    with login(granted, "web", "duetime_producer") as url:
        with psycopg.connect(granted, autocommit=True) as owner:
            owner.execute("do $$ begin execute 'grant create on database ' ||"
                          " quote_ident(current_database()) || ' to web'; end $$")  # fmt: skip
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(plant.encode())
            connection.execute("set search_path = pg_temp, evil, pg_catalog")
            connection.execute("select duetime.enqueue('work', '{}', run_at => clock_timestamp())")
            connection.execute("""select duetime.enqueue_many('[{"task": "work", "key": "k"}]')""")
            seen = connection.execute("select who from evil.seen").fetchall()

    assert seen == []


def test_every_function_with_the_owners_rights_has_a_fixed_path(granted: str) -> None:
    with psycopg.connect(granted) as owner:
        loose = owner.execute(
            "select p.oid::regprocedure::text from pg_proc as p"
            " where p.pronamespace = 'duetime'::regnamespace and p.prosecdef"
            " and not coalesce(p.proconfig @> array['search_path=pg_catalog, pg_temp'], false)"
        ).fetchall()

    assert loose == []


async def test_a_lock_that_a_stranger_holds_delays_no_enqueue_and_no_start(granted: str) -> None:
    app = Duetime(granted)
    ran: list[int] = []

    @app.task(name="work")
    async def work(n: int) -> None:
        ran.append(n)

    with login(granted, "stranger") as url, psycopg.connect(url, autocommit=True) as connection:
        for name in ("duetime.barrier", "duetime.asleep"):
            connection.execute("select pg_advisory_lock(hashtext(%s), hashtext('default'))", [name])
        async with app.worker(poll="60s"):
            for n in range(3):
                await work.enqueue(n)
            await until_true(lambda: sorted(ran) == [0, 1, 2])
    await app.close()


# Workers, operators, readers


async def test_a_worker_runs_jobs_schedules_and_reminders(granted: str) -> None:
    sent: list[str] = []
    with login(granted, "works", "duetime_worker") as url:
        app = Duetime(url, lease="2s", heartbeat="500ms", rescue_every="200ms", prune_every="1s")

        @app.task(name="double")
        async def double(number: int) -> int:
            return 2 * number

        @app.on_reminder
        async def send(reminder: Reminder) -> Sent:
            sent.append(reminder.subject)
            return Sent()

        async with app.worker(name="w"):
            await app.schedules.put("s", double, "@every 1s", args={"number": 1})
            due = await app.now() + timedelta(seconds=2)
            await app.subjects.put("game:1", due=due, recipients=["ann"], remind=["-1s"])
            result = await (await double.using(key="k").enqueue(4)).result(timeout="30s")
            await until_true(lambda: sent == ["game:1"])
        await app.close()
        ran = refused(
            url,
            "update duetime.audit set actor = 'nobody'",
            "delete from duetime.migration",
            "update duetime.installation set id = gen_random_uuid()",
            "truncate duetime.job",
            "alter table duetime.job add column mine integer",
            "create table duetime.mine (x integer)",
        )

    assert result == 8
    assert ran == []


async def test_each_role_can_write_more_than_it_arms_itself(granted: str) -> None:
    with (
        login(granted, "clerk", "duetime_operator") as clerk,
        login(granted, "shop", "duetime_tracker") as shop,
        login(granted, "web") as web,
        login(granted, "works", "duetime_worker") as works,
    ):
        with psycopg.connect(granted, autocommit=True) as owner:
            owner.execute("create schema shop authorization shop")
        with psycopg.connect(shop, autocommit=True) as connection:
            connection.execute(
                "create table shop.orders (id int primary key, at timestamptz, branch text);"
                "create table shop.branch (id text primary key, minutes int[]);"
                "insert into shop.branch values ('b', '{30}');"
                "grant usage on schema shop to web;"
                "grant select, insert, update on shop.orders, shop.branch to web"
            )
        owned = Duetime(shop)
        await owned.tables.put("shop.branch", kind="scopes", id="id", remind="minutes")
        await owned.tables.put("shop.orders", id="id", due="at", scope="branch:{branch}")
        await owned.close()
        with psycopg.connect(web, autocommit=True) as connection:
            connection.execute(
                "insert into shop.orders"
                " select n, '2999-01-01Z', 'b' from generate_series(1, 5001) as n;"
                "update shop.orders set at = at + interval '1 day';"
                "update shop.branch set minutes = '{60}'"
            )
        operator = Duetime(clerk)
        due = await operator.now() + timedelta(days=9)
        define = operator.subjects.define
        await operator.subjects.put_many(
            define(f"s:{number}", due=due, remind=["-1h"]) for number in range(5001)
        )
        await operator.close()
        worker = Duetime(works)
        while await rearm_stale(worker) is not None:
            pass
        await worker.close()
        with psycopg.connect(granted) as owner:
            found = owner.execute(
                "select split_part(s.ref, ':', 1), s.due_at - r.time, count(*)"
                " from duetime.reminder as r join duetime.subject as s on s.id = r.subject_id"
                " where r.status = 'armed' group by 1, 2 order by 1"
            ).fetchall()

    hour = timedelta(hours=1)
    assert found == [("orders", hour, 5001), ("s", hour, 5001)]


async def test_an_operator_operates_and_cannot_act_as_a_worker(granted: str) -> None:
    app = Duetime(granted, lease="5s", heartbeat="500ms")

    @app.task(name="work", max_attempts=1)
    async def work(fail: bool = False) -> None:
        if fail:
            raise ValueError("no")

    with login(granted, "ops", "duetime_operator") as url:
        ops = Duetime(url)
        async with app.worker():
            dead = await work.enqueue(fail=True)
            await reaches(app, dead.id, JobState.DEAD)
            await ops.queues.pause("default", reason="test")
            await ops.jobs.requeue(dead.id)
            await ops.jobs.cancel(dead.id)
            await ops.queues.limit("other", running=2)
            await ops.queues.resume("default")
        await ops.schedules.put("s", "work", "0 3 * * *", by="ops")
        await ops.schedules["s"].pause(reason="test", by="ops")
        await ops.schedules["s"].resume(by="ops")
        await ops.schedules["s"].trigger(by="ops")
        await ops.schedules["s"].delete(by="ops")
        await ops.scopes.put("guild:1", remind=["-1h"], by="ops")
        await ops.recipients.put("ann", by="ops")
        due = await ops.now() + timedelta(days=1)
        await ops.subjects.put("game:1", scope="guild:1", due=due, recipients=["ann"], by="ops")
        await ops.subjects.delete("game:1", by="ops")
        found = {job.state for job in await ops.jobs.list()}
        await ops.close()
        ran = refused(
            url,
            "insert into duetime.worker (name, queues, tasks, concurrency, started_at, seen_at,"
            " lease_until) values ('w', '{}', '{}', 1, now(), now(), now())",
            "insert into duetime.claim (worker_id, job_ids, attempts, claimed_at)"
            " values (1, '{1}', '{1}', now())",
            "delete from duetime.attempt",
            "delete from duetime.audit",
            "update duetime.audit set actor = 'nobody'",
            "delete from duetime.job",
            "truncate duetime.due",
            "create table duetime.mine (x integer)",
        )
    await app.close()

    assert JobState.CANCELLED in found
    assert ran == []


async def test_an_operator_puts_a_scope_whose_row_is_gone(granted: str) -> None:
    app = Duetime(granted)
    await app.store()
    with psycopg.connect(granted, autocommit=True) as owner:
        owner.execute("create table guilds (id integer primary key, minutes integer)")
        await app.tables.put("guilds", kind="scopes", id="id", remind="minutes")
        owner.execute("insert into guilds values (1, 60)")
        await app.scopes.put("own", parent="guilds:1")
        owner.execute("delete from guilds")
        with login(granted, "ops", "duetime_operator") as url:
            ops = Duetime(url)
            await ops.scopes.put("guilds:1", remind=["-2h"], by="ops")
            await ops.close()
        owner.execute("insert into guilds values (1, 60)")
    scope = await app.scopes.get("guilds:1")
    await app.close()

    assert [rule.text for rule in scope.rules or ()] == ["-2h"]


def test_every_table_was_thought_of_for_operators(granted: str) -> None:
    only_workers = {
        "claim", "worker", "worker_name", "task", "progress", "rate_use", "installation",
        "migration", "tracked", "tracked_scope", "flow_run", "attempt_stat", "attempt_sample",
        "alert", "timeline",
    }  # fmt: skip
    writes = {table for table, right in rights_of(granted, "duetime_operator") if right == "insert"}
    with psycopg.connect(granted) as owner:
        tables = {table for (table,) in owner.execute(f"{TABLES} and c.relkind = 'r'").fetchall()}

    assert tables == writes | only_workers | SECRET


async def test_a_reader_sees_everything_and_changes_nothing(granted: str) -> None:
    app = Duetime(granted)

    @app.task(name="work")
    async def work() -> None: ...

    job = await work.enqueue()
    await app.schedules.put("s", work, "0 3 * * *")
    with login(granted, "looks", "duetime_reader") as url:
        reader = Duetime(url)
        states = [found.state for found in await reader.jobs.list()]
        sentence = (await reader.jobs.explain(job.id)).sentence
        queues = await reader.queues.list()
        schedules = [one.name for one in await reader.schedules.list()]
        await reader.close()
        rights = {right for _, right in rights_of(granted, "looks")}
        ran = refused(
            url,
            "select duetime.enqueue('work')",
            "select duetime.start_flow('work')",
            f"select duetime.signal_flow({job.id}, 'approved')",
            f"select duetime._signal_flow({job.id}, 'approved', null, null, 'ann')",
            f"update duetime.due set run_at = now() where job_id = {job.id}",
            "select nextval('duetime.job_id_seq')",
        )
    await app.close()

    assert states[0] is JobState.PENDING
    assert "no live worker" in sentence
    assert queues
    assert schedules == ["s"]
    assert rights == {"select"}
    assert ran == []


@pytest.mark.parametrize("group", ["worker", "operator", "reader"])
async def test_only_the_role_for_it_reads_secrets_or_lets_anybody_in(
    granted: str, group: str
) -> None:
    app = Duetime(granted)
    created = await app.tokens.create("ci", scope="admin")
    await app.accounts.add("ann", role="admin", password="correct horse battery")
    with login(granted, "other", f"duetime_{group}") as url:
        other = Duetime(url)
        tokens, accounts = await other.tokens.list(), await other.accounts.list()
        with pytest.raises(StorageError, match="permission denied"):
            await other.sessions.log_in("ann", "correct horse battery")
        with pytest.raises(StorageError, match="permission denied"):
            await other.tokens.check(created.text)
        with pytest.raises(StorageError, match="permission denied"):
            await other.tokens.create("mine", scope="admin")
        await other.close()
        ran = refused(
            url,
            "select hash from duetime.api_token",
            "select * from duetime.api_token",
            "update duetime.api_token set scope = 'admin'",
            "update duetime.api_token set revoked_at = null",
            "select hash from duetime.account",
            "select stamp from duetime.account",
            "update duetime.account set role = 'admin'",
            "insert into duetime.account (name, role, hash, stamp, created_by)"
            " values ('eve', 'admin', '', '', 'eve')",
            "select hash from duetime.session",
            "update duetime.session set account = 'ann'",
            "select * from duetime.installation_secret",
            "update duetime.login_failure set count = 0",
            "select body from duetime.idempotency",
        )
    await app.close()

    assert [tokens[0].name, accounts[0].name] == ["ci", "ann"]
    assert ran == []


async def test_the_role_for_access_manages_who_may_in_and_no_more(granted: str) -> None:
    with login(granted, "guard", "duetime_access") as url:
        app = Duetime(url)
        created = await app.tokens.create("ci", scope="admin", by="ann")
        checked = await app.tokens.check(created.text)
        await app.tokens.revoke("ci", by="ann")
        await app.accounts.add("ann", role="admin", password="correct horse battery")
        started = await app.sessions.log_in("ann", "correct horse battery", address="10.0.0.1")
        session = await app.sessions.check(started.text)
        await app.accounts.set_role("ann", "viewer", force=True)
        await app.accounts.delete("ann")
        await app.close()
        rights = rights_of(granted, "guard")
        ran = refused(
            url,
            "select * from duetime.job",
            "select duetime.enqueue('work')",
            "delete from duetime.audit",
            "select * from duetime.audit",
        )

    assert checked is not None
    assert session is not None
    assert {table for table, _ in rights} == SECRET | {"audit", "installation", "migration"}
    assert ("audit", "insert") in rights
    assert ran == []


async def test_a_worker_prunes_what_is_over_without_reading_hashes(granted: str) -> None:
    with login(granted, "works", "duetime_worker") as url:
        app = Duetime(url)
        pruned = await app._perform(
            lambda dialect: prune_access(dialect, timedelta(days=1), idle=timedelta(days=1))
        )
        await app.close()

    assert pruned == 0


async def test_a_tracker_tracks_its_own_table_and_no_more(granted: str) -> None:
    with login(granted, "shop", "duetime_tracker") as url:
        with psycopg.connect(granted, autocommit=True) as owner:
            owner.execute("create schema shop authorization shop")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("create table shop.orders (id int primary key, at timestamptz)")
        app = Duetime(url)
        await app.tables.put("shop.orders", id="id", due="at", scope="s:{id}", remind=["-1h"])
        with psycopg.connect(granted, autocommit=True) as stranger:
            # Whoever holds this delays no write for longer than a second.
            stranger.execute("select pg_advisory_lock(hashtext('duetime.scope'), hashtext('s:1'))")
            with psycopg.connect(url, autocommit=True) as connection:
                connection.execute("set statement_timeout = '5s'")
                connection.execute("insert into shop.orders values (1, now() + interval '1 day')")
        rights = rights_of(granted, "shop")
        removed = await app.tables.delete("orders")
        await app.close()
        ran = refused(
            url,
            "select duetime.enqueue('work')",
            "insert into duetime.subject (ref) values ('x')",
            "create table duetime.mine (x integer)",
        )

    assert removed == 1
    assert rights == {("tracked", "select")}
    assert ran == []


# The migrator


def test_the_migrator_needs_a_schema_of_its_own_and_no_more(postgres15: PostgresServer) -> None:
    with fresh_database(postgres15) as admin:
        PostgresRoles(admin, schema="duetime", prefix="duetime").apply()
        try:
            with login(admin, "deploy", "duetime_migrator") as url:
                migrator = make_migrator(Settings(database=url))
                upgrade(migrator)
                ran = refused(url, "create schema mine", "create table public.mine (x integer)")
                downgrade(migrator, 0)
        finally:
            with psycopg.connect(admin, autocommit=True) as owner:
                owner.execute("drop owned by duetime_migrator cascade; drop role duetime_migrator")

    assert ran == []


def test_a_role_that_may_not_make_the_tables_is_told_so(postgres15: PostgresServer) -> None:
    with fresh_database(postgres15) as owner_url, login(owner_url, "poor") as url:
        with pytest.raises(StorageError) as caught:
            upgrade(make_migrator(Settings(database=url)))

    message = str(caught.value)
    assert "permission denied for database" in message
    assert "CREATE on the database" in message
    assert "duetime db roles" not in message


# Without rights


async def test_a_role_without_rights_is_told_what_to_grant(granted: str) -> None:
    with login(granted, "poor") as url:
        with pytest.raises(StorageError) as caught:
            await Duetime(url).jobs.list()

    assert "permission denied for schema duetime" in str(caught.value)
    assert "duetime db roles" in str(caught.value)


async def test_a_producer_that_does_more_is_told_what_to_grant(granted: str) -> None:
    with login(granted, "web", "duetime_producer") as url:
        app = Duetime(url)
        with pytest.raises(StorageError) as caught:
            await app.queues.pause("default")
        await app.close()

    assert "permission denied for table queue" in str(caught.value)
    assert "duetime db roles" in str(caught.value)


def test_a_prefix_that_is_no_name_is_refused(pg_url: str) -> None:
    with pytest.raises(InvalidInput, match="prefix"):
        PostgresRoles(pg_url, schema="duetime", prefix="x; drop")


def test_another_schema_and_prefix_give_other_names(pg_url: str) -> None:
    upgrade(make_migrator(Settings(database=pg_url, schema="jobs")))
    script = PostgresRoles(pg_url, schema="jobs", prefix="shop").script()

    assert "grant usage on schema jobs to shop_worker" in script
    assert "duetime" not in script.replace("`duetime tables put`", "")
