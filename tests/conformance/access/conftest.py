"""An app with accounts whose passwords are hashed quickly."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from argon2 import PasswordHasher

from duetime import Account, Duetime, RoleLike
from duetime.api.passwords import Passwords
from tests.conftest import Backend

PASSWORD = "correct horse battery"


def quick(app: Duetime) -> Duetime:
    """The same app, with parameters of argon2 that are too weak for anything but tests."""
    app.accounts._passwords = Passwords(PasswordHasher(time_cost=1, memory_cost=8, parallelism=1))
    return app


async def add(app: Duetime, name: str, role: RoleLike = "viewer") -> Account:
    return await app.accounts.add(name, role=role, password=PASSWORD)


@pytest.fixture
async def app(backend: Backend) -> AsyncIterator[Duetime]:
    app = quick(Duetime(backend.url))
    yield app
    await app.close()
