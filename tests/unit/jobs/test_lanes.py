"""Where a worker looks, in which order, and from which time on."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest

from duetime.domain.jobs.job import ClaimedJob
from duetime.engine.lanes import Lanes

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


def claimed(queue: str, priority: int, run_at: datetime, job_id: int = 1) -> ClaimedJob:
    return ClaimedJob(job_id, 1, "noop", queue, priority, "{}", 1, 1, run_at, NOON)


def floors(lanes: Lanes) -> list[datetime]:
    return [lane.floor for lane in lanes.in_turn() if lane.floor >= NOON]


def test_a_full_claim_raises_the_floor_of_its_lanes() -> None:
    lanes = Lanes(("a", "b"))
    lanes.in_turn()
    lanes.raise_floors([claimed("a", 5, NOON), claimed("a", 5, NOON + timedelta(seconds=1))])
    lanes.raise_floors([claimed("a", 5, NOON)])

    assert floors(lanes) == [NOON + timedelta(seconds=1)]


def test_jobs_of_one_moment_raise_the_floor_by_their_ids() -> None:
    """A thousand jobs that were enqueued together have the same due time."""
    lanes = Lanes(("a",))
    lanes.in_turn()
    lanes.raise_floors([claimed("a", 5, NOON, 7), claimed("a", 5, NOON, 9)])
    lanes.raise_floors([claimed("a", 5, NOON, 8)])

    assert [lane.floor_id for lane in lanes.in_turn() if lane.floor == NOON] == [9]


def test_floors_are_forgotten_after_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the worker is: what a rolled back transaction left below them must be found."""
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now)
    lanes = Lanes(("a",))
    lanes.in_turn()
    lanes.raise_floors([claimed("a", 5, NOON)])
    now += 0.9
    before = floors(lanes)
    now += 0.2

    assert before == [NOON]
    assert floors(lanes) == []


def test_priority_comes_before_the_queue() -> None:
    found = [lane.priority for lane in Lanes(("mail", "calls")).in_turn()]

    assert found == sorted(found)


def test_each_queue_is_first_in_its_turn() -> None:
    lanes = Lanes(("mail", "calls", "sms"))
    first = [lanes.in_turn()[0].queue for _ in range(6)]

    assert sorted(first[:3]) == ["calls", "mail", "sms"]
    assert first[:3] == first[3:]
