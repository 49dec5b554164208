"""The campaigns of flows in `make chaos`, small enough for every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.flow_campaigns import (
    Kind,
    join_branches,
    kill_workers,
    restart_database,
    stop_workers,
)
from tests.conftest import Backend, fresh_database
from tests.servers import PostgresServer

both_kinds = pytest.mark.parametrize("kind", ["function", "graph"])


@both_kinds
async def test_killed_workers_lose_no_flow_and_repeat_no_recorded_step(
    backend: Backend, tmp_path: Path, kind: Kind
) -> None:
    await kill_workers(backend.url, tmp_path, kind=kind, runs=24, kills=2, replace=False)


async def test_stopped_workers_lose_no_flow_and_repeat_no_recorded_step(
    pg_url: str, tmp_path: Path
) -> None:
    await stop_workers(pg_url, tmp_path, kind="function", runs=25, stops=1)


async def test_a_restarted_database_loses_no_flow_and_repeats_no_recorded_step(
    own_postgres: PostgresServer, tmp_path: Path
) -> None:
    with fresh_database(own_postgres, tables=True) as url:
        await restart_database(
            url, tmp_path, own_postgres.restart, kind="function", runs=25, restarts=1
        )


async def test_branches_that_end_at_one_moment_are_joined_once(
    backend: Backend, tmp_path: Path
) -> None:
    await join_branches(backend.url, tmp_path, rounds=2, processes=2)
