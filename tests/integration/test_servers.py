"""The test servers themselves: what the other tests rely on."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg
import pytest

from tests.conftest import Backend
from tests.postgres_binaries import find_system
from tests.servers import MEMORY, PostgresServer

ROOT = Path(__file__).parents[2]


def test_backend_is_an_empty_database(backend: Backend) -> None:
    if backend.is_postgres:
        with psycopg.connect(backend.url) as connection:
            count = connection.execute(
                "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace"
            ).fetchone()
    else:
        with sqlite3.connect(backend.url.removeprefix("sqlite:///")) as file:
            count = file.execute("SELECT count(*) FROM sqlite_schema").fetchone()

    assert count == (0,)


@pytest.mark.parametrize("name", ["postgres15", "postgres18"])
def test_server_has_the_version_of_its_binaries(request: pytest.FixtureRequest, name: str) -> None:
    server: PostgresServer = request.getfixturevalue(name)

    for url in (server.dsn(), server.socket_dsn()):
        with psycopg.connect(url) as connection:
            assert connection.info.server_version // 10_000 == server.major


def test_two_versions_are_covered(postgres15: PostgresServer, postgres18: PostgresServer) -> None:
    assert postgres18.major == 18
    assert postgres15.major < 18


def test_drop_database_disconnects_who_is_there(postgres15: PostgresServer) -> None:
    name = postgres15.create_database()
    with psycopg.connect(postgres15.dsn(name)) as connection:
        postgres15.drop_database(name)

        with pytest.raises(psycopg.OperationalError):
            connection.execute("SELECT 1")


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
def test_restart_keeps_port_and_committed_data(own_postgres: PostgresServer, mode: str) -> None:
    with psycopg.connect(own_postgres.dsn()) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")

    own_postgres.restart(mode)  # type: ignore[arg-type]

    with psycopg.connect(own_postgres.dsn()) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_paused_server_answers_only_after_it_resumes(own_postgres: PostgresServer) -> None:
    with (
        psycopg.connect(own_postgres.dsn()) as connection,
        ThreadPoolExecutor() as threads,
    ):
        with own_postgres.paused():
            answer = threads.submit(connection.execute, "SELECT 1")
            with pytest.raises(TimeoutError):
                answer.result(timeout=0.2)

        assert answer.result(timeout=10).fetchone() == (1,)


def test_killed_owner_leaves_no_server_and_no_files() -> None:
    program = (
        "import time; from tests.postgres_binaries import find_system;"
        "from tests.servers import PostgresServer; s = PostgresServer(find_system()); s.start();"
        "print(s.home, s._process.pid, flush=True); time.sleep(60)"
    )
    owner = subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert owner.stdout is not None
    home, postmaster = owner.stdout.readline().split()

    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    wait_until(lambda: not Path(home).exists())
    assert not is_running(int(postmaster))


def test_a_server_that_keeps_its_promises_is_not_in_memory() -> None:
    with PostgresServer(find_system(), fsync=True) as server:
        assert not server.home.is_relative_to(MEMORY)


def test_without_room_in_memory_a_server_is_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.servers.MEMORY_NEEDED", 2**60)

    with PostgresServer(find_system()) as server:
        assert not server.home.is_relative_to(MEMORY)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie does not run: in a container nobody may reap it.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "the condition did not come true in time"
        time.sleep(0.01)
