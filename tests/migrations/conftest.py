from __future__ import annotations

import pytest

from tests.migrations import second


@pytest.fixture
def second_migration(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later release of Duetime, which adds a table and a column."""
    second.install(monkeypatch.setattr)
