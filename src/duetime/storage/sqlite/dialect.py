"""How values are written to SQLite and read back: times as whole microseconds since 1970 in UTC,
lists as JSON; and how the statements that are written once for all backends run on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType
from typing import Any

import msgspec

from duetime.domain.keys import shorten_installation
from duetime.storage.store import Row, Statement

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(1, 1, 2, tzinfo=UTC)
_LAST = datetime(9999, 12, 30, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_PLAIN = frozenset({str, int, bool, NoneType, msgspec.Raw})
"""Types of most values in documents, which contain no time."""

decode = msgspec.json.Decoder(list[Any]).decode


def to_us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    """The moment; of a number that no datetime can hold, the last or the first one."""
    try:
        return _EPOCH + timedelta(microseconds=us)
    except OverflowError:
        return _LAST if us > 0 else _FIRST


def span_to_us(span: timedelta) -> int:
    return span // _MICROSECOND


def maybe_to_us(span: timedelta | None) -> int | None:
    return None if span is None else span // _MICROSECOND


def maybe_from_us(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def maybe_span(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)


@cache
def repeat_values(statement: str, rows: int) -> str:
    """Return a statement that has one row of values with so many of them."""
    start = statement.index("values (") + len("values ")
    end = statement.index(")", start) + 1
    return statement[:end] + (", " + statement[start:end]) * (rows - 1) + statement[end:]


def encode_ids(ids: Iterable[int]) -> str:
    return "[" + ",".join(map(str, ids)) + "]"


def encode_set(names: Iterable[str]) -> str:
    return msgspec.json.encode(sorted(set(names))).decode()


class SqliteDialect:
    """Times are microseconds, and the clock comes with the document. What takes several
    statements continues in `…_2`, `…_3`; the rows are those of the last."""

    arms = False
    # For each item of a list SQLite scans the whole of it.
    part = 500

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
    """The document with its times as microseconds."""
    if isinstance(value, datetime):
        return to_us(value)
    if isinstance(value, dict):
        return {
            key: item if type(item) in _PLAIN else _with_us(item) for key, item in value.items()
        }
    if isinstance(value, list):
        return [item if type(item) in _PLAIN else _with_us(item) for item in value]
    return value
