"""What the measures share: the server, its databases, a directory, the scale."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psycopg

from bench import duetime_side, raw, raw_flows
from bench.peers.on_demand import Peers
from bench.processes import ANSWER_SECONDS, Child, ChildFailed
from bench.scale import Scale
from duetime.settings import load_settings
from duetime.storage.migrations import upgrade
from duetime.wiring import make_migrator
from tests.postgres_binaries import find_system
from tests.servers import PostgresServer

SERVER_SETTINGS = {"shared_buffers": "1GB"}


@dataclass
class Environment:
    """Databases are made when first asked for, each with Duetime's schema and the raw tables."""

    scale: Scale
    server: PostgresServer
    directory: Path
    peers: Peers
    _databases: set[str] = field(default_factory=set)

    def database(self, name: str) -> str:
        """Return the URL of a database of this name."""
        dsn = self.server.dsn(name)
        if name not in self._databases:
            self.server.create_database(name)
            self._databases.add(name)
            upgrade(make_migrator(load_settings({"database": dsn})))
            raw.create(dsn)
            raw_flows.create(dsn)
        return dsn

    def crowded(self, name: str = "crowded", jobs: int | None = None) -> str:
        """Return the URL of a database with a million jobs that are not due, or with `jobs`."""
        loaded = name in self._databases
        dsn = self.database(name)
        if not loaded:
            duetime_side.load_future(dsn, jobs or self.scale.future_jobs)
            execute(dsn, "vacuum analyze")
        return dsn

    def bare_database(self, name: str) -> str:
        """Return the URL of a database that is empty when first asked for."""
        if name not in self._databases:
            self.server.create_database(name)
            self._databases.add(name)
        return self.server.dsn(name)

    def drop(self, name: str) -> None:
        self.server.drop_database(name)
        self._databases.discard(name)


@contextmanager
def open_environment(scale: Scale) -> Iterator[Environment]:
    """Start a private server, durable if the scale says so; remove it at the end."""
    with (
        tempfile.TemporaryDirectory(prefix="duetime-bench-") as directory,
        PostgresServer(find_system(), fsync=scale.fsync, settings=SERVER_SETTINGS) as server,
    ):
        peers = Peers(scale, Path(directory) / "peers")
        yield Environment(scale, server, Path(directory), peers)


def execute(dsn: str, *statements: str) -> list[Any]:
    """Run statements, each by itself; return the rows of the last."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for statement in statements:
            cursor = connection.execute(statement.encode())
        return cursor.fetchall() if cursor.description else []


@contextmanager
def duetime_worker(database: str, **settings: Any) -> Iterator[Child]:
    """A worker in a process of its own, idle and ready."""
    with Child("worker", database=database, **settings) as worker:
        worker.hear()
        worker.tell("go")
        worker.hear()
        yield worker
        stop_worker(worker)


def stop_worker(worker: Child) -> dict[str, Any]:
    """Stop it; return its first claim, its last finish and how often its handler ran."""
    worker.tell("stop")
    deadline = time.monotonic() + ANSWER_SECONDS
    while time.monotonic() < deadline:
        said = worker.hear()
        if isinstance(said, Mapping) and "runs" in said:
            return dict(said)
    raise ChildFailed("the worker does not stop")
