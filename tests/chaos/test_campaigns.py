"""The whole campaigns: `make chaos`."""

from __future__ import annotations

from pathlib import Path

import pytest

from duetime import Duetime
from tests.chaos.campaigns import enqueue_at_random_moments, kill_workers
from tests.conftest import Backend

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


async def test_no_wake_up_is_lost_in_20_000_enqueues(pg_url: str, tmp_path: Path) -> None:
    app = Duetime(pg_url, migrate=True)
    await app.now()
    await app.close()

    late = await enqueue_at_random_moments(pg_url, jobs=20_000, directory=tmp_path)

    print(f"start after commit: {late}")
    assert late["worst"] < 1.0


async def test_50_kills_lose_and_double_nothing(backend: Backend) -> None:
    ended = await kill_workers(backend.url, kills=50, jobs=2_000)

    print(f"attempts ended as: {dict(ended)}")
