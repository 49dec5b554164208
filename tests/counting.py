"""Counts the statements that a store runs for those who write them without I/O."""

from __future__ import annotations

from typing import Any, cast

import pytest

from duetime.storage.store import Statements, Store


class Counted:
    """How many statements ran since it was last asked: all, or those with a name."""

    def __init__(
        self, store: Store, monkeypatch: pytest.MonkeyPatch, name: str | None = None
    ) -> None:
        self._ran = 0
        self._text = None if name is None else cast("Any", store)._sql[name]
        transact = store.transact

        def count(statements: Statements, **how: Any) -> Any:
            return transact(self._each(statements), **how)

        monkeypatch.setattr(store, "transact", count)

    def ran(self) -> int:
        ran, self._ran = self._ran, 0
        return ran

    def _each(self, statements: Statements) -> Statements:
        try:
            statement = next(statements)
            while True:
                self._ran += self._text is None or statement[0] == self._text
                statement = statements.send((yield statement))
        except StopIteration as done:
            return done.value
