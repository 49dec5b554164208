"""How the statements that are written once for all backends are run on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.reminders.keys import shorten_installation
from duetime.storage.sqlite.moment import from_us, to_us
from duetime.storage.store import Row, Statement


class SqliteDialect:
    """Times are microseconds, and the clock comes with the document. What takes several
    statements goes on in `…_2`, `…_3`; the rows are those of the last."""

    arms = False

    def __init__(self, sql: Mapping[str, str], now_us: Callable[[], int]) -> None:
        self._sql = sql
        self._now_us = now_us
        self._installation: str | None = None

    def run(self, name: str, document: Any) -> Generator[Statement, list[Row], list[Row]]:
        whole = {"now": self._now_us(), "doc": _with_us(document)}
        parameters = (msgspec.json.encode(whole).decode(),)
        rows = yield self._sql[name], parameters
        number = 2
        while (text := self._sql.get(f"{name}_{number}")) is not None:
            rows = yield text, parameters
            number += 1
        return rows

    def now(self) -> Generator[Statement, list[Row], datetime]:
        yield from ()
        return from_us(self._now_us())

    def installation(self) -> Generator[Statement, list[Row], str]:
        if self._installation is None:
            rows = yield self._sql["installation"], ()
            self._installation = shorten_installation(rows[0][0])
        return self._installation

    def moment(self, value: Any) -> datetime:
        return from_us(value)


def _with_us(value: Any) -> Any:
    if isinstance(value, datetime):
        return to_us(value)
    if isinstance(value, dict):
        return {key: _with_us(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_us(item) for item in value]
    return value
