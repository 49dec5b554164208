"""How the statements that are written once for all backends are run on PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from duetime.domain.reminders.keys import shorten_installation
from duetime.storage.store import Row, Statement


class PostgresDialect:
    """A statement takes the document as it is; times are native."""

    arms = True

    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql
        self._installation: str | None = None

    def run(self, name: str, document: Any) -> Generator[Statement, list[Row], list[Row]]:
        return (yield self._sql[name], (msgspec.json.encode(document).decode(),))

    def now(self) -> Generator[Statement, list[Row], datetime]:
        rows = yield self._sql["now"], ()
        return self.moment(rows[0][0])

    def installation(self) -> Generator[Statement, list[Row], str]:
        if self._installation is None:
            rows = yield self._sql["installation"], ()
            self._installation = shorten_installation(rows[0][0])
        return self._installation

    def moment(self, value: Any) -> datetime:
        # It comes in the session's time zone, which may be any.
        return cast("datetime", value).astimezone(UTC)
