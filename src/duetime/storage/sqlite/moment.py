"""Moments and spans as SQLite stores them: whole microseconds, since 1970 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST = datetime(1, 1, 2, tzinfo=UTC)
_LAST = datetime(9999, 12, 30, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


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
