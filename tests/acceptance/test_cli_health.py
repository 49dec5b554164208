"""`duetime health`, as probes use it."""

from __future__ import annotations

import asyncio
import socket
import time
from pathlib import Path

import psycopg
import pytest

from duetime import Duetime
from duetime.settings import Settings
from duetime.storage.migrations import Migration
from duetime.wiring import make_migrator
from tests.acceptance.command import duetime
from tests.conftest import Backend, query
from tests.servers import PostgresServer

HEALTHY, NO_DATABASE, BAD_SCHEMA, NO_WORKER = 0, 3, 4, 5


async def test_with_a_live_worker_all_is_well(backend: Backend, app: Duetime) -> None:
    async with app.worker(name=f"{socket.gethostname()}:1", queues=["default", "mail"]):
        plain = await asyncio.to_thread(duetime, backend.url, "health")
        queue = duetime(backend.url, "health", "--queue", "mail", "--this-host", "--json")
        other = duetime(backend.url, "health", "--queue", "mail", "--queue", "other", "--json")
        named = duetime(backend.url, "health", "--worker", "nobody", "--json")

    assert plain.code == HEALTHY
    assert plain.out.splitlines()[1].split()[:2] == ["database", "ok"]
    assert queue.code == HEALTHY
    assert queue.json["healthy"]
    assert other.code == named.code == NO_WORKER
    assert "serves the queue other" in other.json["checks"][-1]["message"]
    assert "no live worker named nobody" in named.json["checks"][-1]["message"]


async def test_a_worker_whose_lease_has_run_out_is_not_live(backend: Backend, app: Duetime) -> None:
    store = await app.store()
    await store.register_worker(
        name="lost", queues=["default"], tasks={}, concurrency=1, lease=app.settings.lease
    )
    query(
        backend,
        "update duetime.worker set lease_until = "
        + ("now() - interval '1 s'" if backend.is_postgres else "1"),
    )

    answer = duetime(backend.url, "health", "--json")
    without = duetime(backend.url, "health", "--no-worker")

    assert answer.code == NO_WORKER
    assert "the lease of lost has run out" in answer.json["checks"][-1]["message"]
    assert without.code == HEALTHY


def test_schema_that_is_missing_or_newer(backend: Backend, tmp_path: Path) -> None:
    migrator = make_migrator(Settings(database=backend.url))
    if not backend.is_postgres:
        (tmp_path / "duetime.db").touch()
    missing = duetime(backend.url, "health", "--json")
    duetime(backend.url, "db", "init")
    with migrator.session() as session:
        session.record(Migration(99, "from_the_future", "", ""))
    newer = duetime(backend.url, "health", "--json")

    assert missing.code == newer.code == BAD_SCHEMA
    assert "duetime db init" in missing.json["checks"][-1]["message"]
    assert [check["ok"] for check in newer.json["checks"]] == [True, False]


def test_database_that_is_not_there(postgres15: PostgresServer, tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.db"
    damaged.write_bytes(b"x" * 5000)
    for url in (
        "postgresql://127.0.0.1:1/shop",
        postgres15.dsn("nowhere"),
        f"sqlite:///{tmp_path}/none.db",
        f"sqlite:///{damaged}",
    ):
        answer = duetime(url, "health", "--json")

        assert answer.code == NO_DATABASE
        assert answer.json["healthy"] is False
        assert [check["name"] for check in answer.json["checks"]] == ["database"]
    assert not (tmp_path / "none.db").exists()


def test_database_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as never_answers:
        port = never_answers.getsockname()[1]
        began = time.monotonic()
        answer = duetime(
            f"postgresql://ann:hunter2@127.0.0.1:{port}/x", "health", "--timeout", "500ms"
        )
        took = time.monotonic() - began

    assert answer.code == NO_DATABASE
    assert "did not answer within 500ms" in answer.out
    assert "hunter2" not in answer.out + answer.err
    # Not the ten seconds that a connection may take.
    assert took < 8


@pytest.mark.parametrize("backend", ["postgres15"], indirect=True)
def test_database_that_refuses_the_role(backend: Backend) -> None:
    duetime(backend.url, "db", "init")
    with psycopg.connect(backend.url, autocommit=True) as connection:
        connection.execute("drop role if exists health_stranger")
        connection.execute("create role health_stranger login")
    answer = duetime(backend.url.replace("//duetime@", "//health_stranger@"), "health")

    assert answer.code == NO_DATABASE
    assert "permission denied" in answer.out
