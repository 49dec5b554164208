"""Applications on a fresh database of each backend."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from duetime import Duetime
from tests.conftest import Backend


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    """An application without tasks, migrated; intervals short, so that tests are.

    Not the lease: on a busy machine a worker must not lose it. Whoever wants that says so.
    """
    app = Duetime(
        backend.url, migrate=True, lease="20s", heartbeat="500ms", rescue_every="200ms", grace="5s"
    )
    yield app
    await app.close()


@pytest.fixture
async def pg_app(pg_url: str) -> AsyncIterator[Duetime]:
    """The same, on PostgreSQL alone."""
    app = Duetime(
        pg_url, migrate=True, lease="20s", heartbeat="500ms", rescue_every="200ms", grace="5s"
    )
    yield app
    await app.close()
