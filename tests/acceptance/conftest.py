from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from duetime import Duetime
from tests.acceptance import shop
from tests.conftest import Backend


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    """An app on the fresh database, with its tables made, which knows the shop's tasks."""
    app = Duetime(backend.url, migrate=True)
    app.tasks.update(shop.app.tasks)
    await app.store()
    yield app
    await app.close()
