"""What workers count."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from duetime.domain.jobs.job import AttemptOutcome, ClaimedJob, FinishedJob
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.telemetry import tally as tallies
from duetime.telemetry.tally import BOUNDS, Histogram, Tally

NOW = datetime(2026, 3, 8, tzinfo=UTC)


def finished(
    number: int, *, task: str = "pay", key: str | None = None, attempt: int = 1, ran_us: int = 2000
) -> FinishedJob:
    """Due 40 ms before its claim, started 10 ms after it."""
    due = NOW - timedelta(milliseconds=40)
    job = ClaimedJob(number, 1, task, "default", 5, "{}", attempt, 3, due, NOW, key)
    return FinishedJob(job, AttemptOutcome.COMPLETED, 10_000, 10_000 + ran_us)


@pytest.mark.parametrize("count", [1, 49, 50, 51, 99, 100, 149, 501, 1000])
def test_every_attempt_of_a_batch_counts_however_large_it_is(count: int) -> None:
    tally = Tally()
    tally.jobs_finished([finished(number) for number in range(count)])

    assert tally.finished["pay", "completed"] == count
    for histogram in (tally.queue_time["pay"], tally.run_time["pay"], tally.lateness["job"]):
        assert sum(histogram.counts) == count
    assert tally.run_time["pay"].total == count * 2000
    assert tally.queue_time["pay"].total == count * 50_000


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram()
    histogram.add([1001, 1000, 0, 2_000_000_000])

    assert histogram.counts[0] == 2
    assert histogram.counts[1] == 1
    assert histogram.counts[-1] == 1
    assert len(histogram.counts) == len(BOUNDS) + 1


def test_lateness_is_that_of_first_attempts_by_kind() -> None:
    tally = Tally()
    tally.jobs_finished(
        [
            finished(1),
            finished(2, key="order:7"),
            finished(3, key="tick:nightly@2026-03-08T00:00:00Z"),
            finished(4, task=REMIND_TASK),
            finished(5, attempt=2),
        ]
    )

    assert {kind: sum(found.counts) for kind, found in tally.lateness.items()} == {
        "job": 2,
        "tick": 1,
        "reminder": 1,
    }
    assert sum(tally.queue_time["pay"].counts) == 4


def test_names_beyond_the_limit_are_counted_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tallies, "MAX_NAMES", 2)
    tally = Tally()
    tally.jobs_finished([finished(number, task=task) for number, task in enumerate("abcdab")])

    assert tally.finished == {
        ("a", "completed"): 2,
        ("b", "completed"): 2,
        ("other", "completed"): 2,
    }


def test_a_copy_does_not_change() -> None:
    tally = Tally()
    tally.jobs_finished([finished(1)])
    copy = tally.copy()
    tally.jobs_finished([finished(2)])
    tally.woken("w", "notified")

    assert copy.finished["pay", "completed"] == 1
    assert sum(copy.run_time["pay"].counts) == 1
    assert not copy.wakeups
