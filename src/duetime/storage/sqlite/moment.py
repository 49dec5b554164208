"""Moments and spans as SQLite stores them: whole microseconds, since 1970 in UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def to_us(moment: datetime) -> int:
    return (moment - _EPOCH) // _MICROSECOND


def from_us(us: int) -> datetime:
    return _EPOCH + timedelta(microseconds=us)


def span_to_us(span: timedelta) -> int:
    return span // _MICROSECOND


def maybe_to_us(span: timedelta | None) -> int | None:
    return None if span is None else span // _MICROSECOND


def maybe_from_us(us: int | None) -> datetime | None:
    return None if us is None else _EPOCH + timedelta(microseconds=us)


def maybe_span(us: int | None) -> timedelta | None:
    return None if us is None else timedelta(microseconds=us)
