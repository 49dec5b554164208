"""The chain of checks behind a tick: what passed, what failed, and what was not reached."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from duetime.domain.reasons import Check, Reason
from duetime.domain.schedules.explain import explain_tick
from duetime.domain.schedules.schedule import Schedule, TickStatus, make_policy
from duetime.domain.schedules.timetable import timetable

NOW = datetime(2026, 3, 2, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Row:
    """A row of the ledger."""

    def __init__(self, status: str, reason: Reason | None = None, **columns: Any) -> None:
        self.tick = self.run_at = columns.get("tick", NOW)
        self.status = TickStatus(status)
        self.reason = reason
        self.job_id: int | None = 7
        self.claimed_at: datetime | None = columns.get("claimed_at")
        self.claimed_by: str | None = "w1"
        self.started_at: datetime | None = columns.get("started_at")
        self.finished_at: datetime | None = columns.get("finished_at")
        self.succeeded: bool | None = columns.get("succeeded")
        self.error: str | None = None


def chain(row: Row | None, tick: datetime = NOW, **policy: Any) -> tuple[Check, ...]:
    schedule = Schedule(
        id=1, name="s", kind="task", target="note", args="{}", queue=None, priority=None,
        max_attempts=None, timeout=None, timetable=timetable("@hourly"),
        policy=make_policy(policy), planned_until=NOW, next_run_at=None, last_run_at=None,
        last_enqueued_at=None, paused_at=None, paused_by=None, pause_reason=None,
        paused_until=None, failures=0, broken=None, declared=False, revision=1, created_at=NOW,
        updated_at=NOW,
    )  # fmt: skip
    return explain_tick(schedule, tick, now=NOW, row=row).checks


def answers(checks: tuple[Check, ...]) -> list[str | None]:
    assert all((check.code is None) == (check.passed is None) for check in checks)
    return [check.code for check in checks]


def failed(checks: tuple[Check, ...]) -> list[str]:
    return [check.question for check in checks if check.passed is False]


def test_an_armed_tick_waits_for_its_time_then_for_a_worker() -> None:
    ahead, due = chain(Row("armed", tick=NOW + HOUR)), chain(Row("armed"))

    assert answers(ahead) == ["active", "in_timetable", "not_due", *[None] * 4]
    assert answers(due) == ["active", "in_timetable", "time_come", "due", *[None] * 3]
    assert failed(ahead) == ["Has its time come?"]
    assert failed(due) == ["Has a worker claimed it?"]


def test_a_waiting_tick_names_what_is_in_its_way() -> None:
    overlap = Row("waiting", Reason("overlap", {"tick": "11:00"}))
    never = Row("waiting", Reason("dependency_never", {"after": "load"}))

    assert failed(chain(overlap, after="load")) == ["Have the runs before it finished?"]
    assert failed(chain(never, after="load")) == ["Has the schedule that it comes after succeeded?"]
    assert answers(chain(never, after="load"))[-3:] == ["dependency_never", None, None]


@pytest.mark.parametrize(
    ("status", "reason", "question"),
    [
        ("skipped", Reason("schedule_paused", {"by": "ann"}), "Is the schedule active?"),
        ("skipped", Reason("late_skipped", {"late": 60}), "Is it not too late?"),
        ("coalesced", Reason("coalesced", {"late": 60}), "Is it not too late?"),
        ("skipped", Reason("overlap", {"tick": "11:00"}), "Have the runs before it finished?"),
        ("skipped", None, "Has it run?"),
    ],
)
def test_the_chain_of_a_tick_that_did_not_run_begins_with_why(
    status: str, reason: Reason | None, question: str
) -> None:
    first, *rest = chain(Row(status, reason))

    assert (first.question, first.passed) == (question, False)
    assert all(check.passed is None for check in rest)


@pytest.mark.parametrize(("succeeded", "code"), [(True, "succeeded"), (False, "failed")])
def test_the_chain_of_a_tick_that_ran_is_short(succeeded: bool, code: str) -> None:
    times = dict.fromkeys(("claimed_at", "started_at", "finished_at"), NOW)
    checks = chain(Row("fired", None, **times, succeeded=succeeded))

    assert answers(checks) == ["time_come", code]
    assert checks[-1].passed is succeeded


def test_a_tick_without_a_row_has_a_chain_too() -> None:
    assert failed(chain(None, NOW + timedelta(minutes=1))) == [
        "Is the tick in its timetable, and not excluded?"
    ]
    assert failed(chain(None, NOW + HOUR)) == ["Has its time come?"]
