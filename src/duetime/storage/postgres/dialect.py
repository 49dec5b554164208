"""How the statements that are written once for all backends are run on PostgreSQL."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from datetime import UTC, datetime
from typing import Any, cast

import msgspec

from duetime.storage.store import Row, Statement


class PostgresDialect:
    """A statement takes the document as it is; times are native."""

    arms = True

    def __init__(self, sql: Mapping[str, str]) -> None:
        self._sql = sql

    def run(self, name: str, document: Any) -> Generator[Statement, list[Row], list[Row]]:
        return (yield self._sql[name], (msgspec.json.encode(document).decode(),))

    def now(self) -> Generator[Statement, list[Row], datetime]:
        rows = yield self._sql["now"], ()
        return self.moment(rows[0][0])

    def moment(self, value: Any) -> datetime:
        # It comes in the session's time zone, which may be any.
        return cast("datetime", value).astimezone(UTC)
