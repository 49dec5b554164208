"""What every request asks reads a few pages, beside 50,000 tokens, sessions and keys.

The statements are prepared while the tables are empty, as a service does that starts on a fresh
database, and explained when they are full; and again when the server has analyzed the tables.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from duetime.storage.migrations import upgrade
from duetime.storage.postgres.migrator import PostgresMigrator
from duetime.storage.postgres.store import PostgresStore
from tests.conftest import fresh_database
from tests.servers import PostgresServer
from tests.storage.jobs.test_plans import Prepared, pages

ROWS = 50_000
FILL = f"""
insert into duetime.api_token (name, hash, scope, created_by, last_used_at)
    select 'n' || n, md5(n::text), 'read', 'ann', now() from generate_series(1, {ROWS}) as n;
insert into duetime.account (name, role, hash, stamp, created_by)
    select 'n' || n, 'viewer', '', 's', 'ann' from generate_series(1, {ROWS}) as n;
insert into duetime.session (hash, account, stamp, expires_at)
    select md5(n::text), 'n' || n, 's', now() + interval '1 day'
    from generate_series(1, {ROWS}) as n;
insert into duetime.login_failure (bucket, count, until)
    select n, 1, now() + interval '5 minutes' from generate_series(1, {ROWS}) as n;
insert into duetime.idempotency (id, fingerprint, holder, held_until, expires_at, status, body)
    select md5(n::text), '', '', now(), now() + interval '1 day', 200, '{{}}'
    from generate_series(1, {ROWS}) as n;
"""
HASH = "c4ca4238a0b923820dcc509a6f75849b"
TIMES = {"idle": 10**12, "touch_every": 10**9}
REQUESTS: dict[str, tuple[Any, int]] = {
    "token_check": ({"hash": HASH} | TIMES, 8),
    "token_touch": ({"id": 7} | TIMES, 8),
    "session_check": ({"hash": HASH} | TIMES, 12),
    "session_touch": ({"id": 7} | TIMES, 8),
    "session_list": ({"account": "n7"} | TIMES, 12),
    "account_password": ({"name": "n7"}, 8),
    "login_count": ({"bucket": 7, "window": 10**9}, 30),
    "idempotency_reserve": (
        {"id": "new", "fingerprint": "", "holder": "h", "held": 10**9, "kept": 10**10},
        40,
    ),
    "idempotency_get": ({"id": HASH}, 8),
    "idempotency_finish": (
        {"id": HASH, "holder": "", "status": 200, "headers": "{}", "body": "{}"},
        12,
    ),
    "idempotency_prune": ({}, 8),
}
"""The document of each statement, and how many pages it may touch."""


@pytest.fixture(scope="module")
def session(postgres15: PostgresServer) -> Iterator[Prepared]:
    with fresh_database(postgres15) as url:
        upgrade(PostgresMigrator(url))
        sql = {
            name: text.replace("%s", "%(document)s")
            for name, text in PostgresStore(url)._sql.items()
        }
        with psycopg.connect(url, autocommit=True, prepare_threshold=None) as connection:
            connection.execute("set enable_seqscan = off")
            prepared = Prepared(connection, sql)
            connection.execute("begin")
            for name, (document, _) in REQUESTS.items():
                prepared.prepare(name, document=json.dumps(document))
            connection.execute("rollback")
            connection.execute(FILL.encode())
            yield prepared


@pytest.fixture(scope="module")
def analyzed(session: Prepared) -> Prepared:
    session._connection.execute("vacuum analyze")
    return session


@pytest.mark.parametrize("name", REQUESTS)
def test_with_the_plan_of_empty_tables(session: Prepared, name: str) -> None:
    check(session, name)


@pytest.mark.parametrize("name", REQUESTS)
def test_once_the_tables_are_analyzed(analyzed: Prepared, name: str) -> None:
    check(analyzed, name)


def check(session: Prepared, name: str) -> None:
    document, most = REQUESTS[name]
    session.plan(name, document=json.dumps(document))
    plan = session.plan(name, document=json.dumps(document))

    assert pages(plan) <= most, plan
