"""The campaigns of `make chaos`, small enough for every run."""

from __future__ import annotations

from pathlib import Path

from duetime import Duetime
from tests.chaos.campaigns import enqueue_at_random_moments, kill_workers
from tests.conftest import Backend


async def test_no_wake_up_is_lost(pg_url: str, tmp_path: Path) -> None:
    app = Duetime(pg_url, migrate=True)
    await app.now()
    await app.close()

    late = await enqueue_at_random_moments(pg_url, jobs=1_600, directory=tmp_path)

    assert late["worst"] < 20, "a lost wake-up would be found by the poll, a minute later"


async def test_killed_workers_lose_and_double_nothing(backend: Backend) -> None:
    ended = await kill_workers(backend.url, kills=4, jobs=200)

    assert ended["lost"] > 0
    assert ended["completed"] >= 200
