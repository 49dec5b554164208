"""The whole campaigns of flows: `make chaos`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

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

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

both_kinds = pytest.mark.parametrize("kind", ["function", "graph"])


@both_kinds
async def test_500_runs_survive_20_kills(backend: Backend, tmp_path: Path, kind: Kind) -> None:
    done = await kill_workers(backend.url, tmp_path, kind=kind, runs=500, kills=20)

    print(f"steps: {dict(done)}")
    assert done["twice"] > 0, "no step was killed before its record"


@both_kinds
async def test_500_runs_survive_workers_that_stand_still(
    backend: Backend, tmp_path: Path, kind: Kind
) -> None:
    done = await stop_workers(backend.url, tmp_path, kind=kind, runs=500, stops=5)

    print(f"steps: {dict(done)}")


@both_kinds
@pytest.mark.parametrize("mode", ["fast", "kill"])
async def test_500_runs_survive_restarts_of_the_database(
    own_postgres: PostgresServer, tmp_path: Path, kind: Kind, mode: Literal["fast", "kill"]
) -> None:
    with fresh_database(own_postgres) as url:
        done = await restart_database(
            url, tmp_path, lambda: own_postgres.restart(mode), kind=kind, runs=500, restarts=4
        )

    print(f"steps: {dict(done)}")


async def test_100_branches_that_end_at_one_moment_are_joined_once(
    backend: Backend, tmp_path: Path
) -> None:
    await join_branches(backend.url, tmp_path, rounds=50, processes=4)
