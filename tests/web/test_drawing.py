"""What the charts of the dashboard draw: overlaps are shaded, and labels never overlap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from duetime.domain.stats.timeline import Timeline, TimelineRow, TimelineRun
from duetime.web.dashboard.charts import TimeAxis
from duetime.web.dashboard.mending import find_remedy
from duetime.web.dashboard.rendering import breakable, is_ahead
from duetime.web.dashboard.schedules import draw_timeline, find_collisions, find_overlaps
from duetime.web.dashboard.subjects import Dot, _place

NOW = datetime(2026, 3, 8, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
UTC_ZONE = ZoneInfo("UTC")


def run(start: int, end: int | None, outcome: str = "fired") -> TimelineRun:
    """A run, by its minutes from noon."""
    at = NOW + start * MINUTE
    finished = None if end is None else NOW + end * MINUTE
    return TimelineRun(tick=at, outcome=outcome, started_at=at, finished_at=finished, job_id=start)


def timeline(**schedules: Any) -> Timeline:
    rows = tuple(
        TimelineRow(
            schedule=name, when="@every 1h", tz="UTC", target="report", kind="task", paused=False,
            broken=False, runs=tuple(one for one in given if isinstance(one, TimelineRun)),
            parts=(), complete_since=NOW - 60 * MINUTE,
            future=tuple(one for one in given if isinstance(one, datetime)), more_future=False,
        )
        for name, given in schedules.items()
    )  # fmt: skip
    return Timeline(since=NOW - 60 * MINUTE, until=NOW + 60 * MINUTE, now=NOW, rows=rows, next=None)


def test_runs_of_two_schedules_at_the_same_time_are_shaded() -> None:
    drawn = timeline(
        backup=[run(-50, -30), run(-10, None)], report=[run(-40, -35), run(-29, -20), run(-5, -4)]
    )

    spans = [
        ((since - NOW) // MINUTE, (until - NOW) // MINUTE, names)
        for since, until, names in find_overlaps(drawn)
    ]

    both = ("backup", "report")
    assert spans == [(-40, -35, both), (-5, -4, both)]
    assert [one.hint for one in draw_timeline(drawn, UTC_ZONE).overlaps] == ["backup, report"] * 2


def test_a_run_that_follows_another_at_once_does_not_overlap_it() -> None:
    assert find_overlaps(timeline(backup=[run(-50, -30)], report=[run(-30, -20)])) == []


def test_ticks_ahead_at_the_same_time_are_shaded() -> None:
    later = NOW + 30 * MINUTE

    found = find_collisions(timeline(backup=[later], report=[NOW + MINUTE, later]))

    assert found == [(later, later, ("backup", "report"))]


def test_overlaps_within_one_schedule_shade_nothing() -> None:
    drawn = draw_timeline(timeline(backup=[run(-50, -30), run(-40, -20)]), UTC_ZONE)

    assert drawn.overlaps == []


def test_short_runs_that_would_hide_each_other_share_a_box() -> None:
    [row] = draw_timeline(
        timeline(stock=[run(-40, -40), run(-3, -3), run(-2, -2, "failed")]), UTC_ZONE
    ).rows

    hints = {box.hint: (box.kind, box.also, box.share) for box in row.boxes}
    assert len(hints) == 2
    assert hints["1 fired, 1 failed, ticks Sun 11:57 to 11:58"] == ("completed", "dead", 0.5)


def test_labels_run_neither_into_dots_nor_over_the_line_of_now() -> None:
    axis = TimeAxis(NOW - 60 * MINUTE, NOW + 60 * MINUTE, 950, UTC_ZONE, 150)
    now = axis.x(NOW)

    def dot(minutes: int, label: str) -> Dot:
        return Dot(NOW + minutes * MINUTE, "sent", "●", label, label)

    dots = [dot(-50, "a"), dot(-30, "b" * 30), dot(-29, "c" * 10), dot(-3, "-10m sent")]
    first, second, third, last = _place(dots, axis, now)

    assert first.side == "right"
    assert second.side is None, "There is no room on either side."
    assert third.side == "right"
    assert last.side == "left", "To the right it would cross the line of now."


def test_dots_that_say_the_same_at_the_same_place_become_one() -> None:
    axis = TimeAxis(NOW - 60 * MINUTE, NOW + 60 * MINUTE, 950, UTC_ZONE, 150)
    same = [
        Dot(NOW + number * timedelta(seconds=1), "sent", "■", "mail", "x") for number in range(3)
    ]

    [one] = _place(same, axis, axis.x(NOW))

    assert one.label.endswith("3")


def test_a_skipped_tick_can_be_run_and_a_reminder_that_is_not_due_cannot() -> None:
    tick = {"schedule": "nightly", "tick": "2026-03-08T02:00:00Z"}

    remedy = find_remedy("late_skipped", tick)

    assert remedy is not None
    assert remedy.parts == ("schedules", "nightly", "backfill")
    assert remedy.fields["start"] == "2026-03-08T02:00:00+00:00"
    assert find_remedy("not_due", {"subject": "game:1", "job": 7}) is None
    assert find_remedy(None, {}) is None


def test_a_name_breaks_after_dots_and_underscores_only() -> None:
    assert breakable("shop.count_stock") == "shop.<wbr>count_<wbr>stock"
    assert breakable("<b>_x.") == "&lt;b&gt;_<wbr>x."


def test_what_is_still_to_come_is_not_shown_as_a_failure() -> None:
    assert is_ahead("not_due")
    assert is_ahead("flow_waiting")
    assert not is_ahead("queue_paused")
    assert not is_ahead(None)
