"""The lines of `duetime top`."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from duetime.cli.top.frame import Part, Style, _rates, as_text
from duetime.domain.stats.series import Series, SeriesPoint

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def point(minute: int, **counts: int) -> SeriesPoint:
    given = {"completed": 0, "retried": 0, "dead": 0} | counts
    return SeriesPoint(
        at=NOON + timedelta(minutes=minute),
        busy=0.0,
        lateness_p50=None,
        lateness_p99=None,
        duration_p50=None,
        duration_p99=None,
        **given,
    )


def test_rates_are_of_the_last_minute_and_the_one_that_has_begun() -> None:
    points = (point(0, completed=9000), point(1, completed=600, dead=30), point(2, completed=300))
    series = Series(
        since=NOON,
        until=NOON + timedelta(minutes=2, seconds=30),
        bucket=timedelta(minutes=1),
        task=None,
        completed=9900,
        retried=0,
        dead=30,
        lateness_p50=0.012,
        lateness_p99=2.5,
        lateness_max=None,
        lateness_max_at=None,
        duration_p50=None,
        duration_p99=None,
        duration_max=None,
        points=points,
    )

    assert [part.text for part in _rates(series)] == [
        "done 10.0/s",
        "failed 0.3/s",
        "started late by 12ms (p50), 2.5s (p99)",
    ]


def test_a_line_is_cut_at_the_width_and_not_after_its_last_word() -> None:
    line = [Part("name", Style.BAD), Part("   "), Part("ok"), Part("      ")]

    def plain(text: str, _: Style) -> str:
        return text

    assert as_text([line], 9, plain) == ["name   ok"]
    assert as_text([line], 8, plain) == ["name   …"]
    assert as_text([line], 3, plain) == ["na…"]
