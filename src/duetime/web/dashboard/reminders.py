"""The screens of reminders: the agenda, one reminder, and why it was sent or not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from typing import Annotated, Any
from zoneinfo import ZoneInfo

import msgspec
from fastapi import Path

from duetime.domain.duration import read_duration
from duetime.domain.page import Page
from duetime.domain.reminders.reminder import Reminder, ReminderStatus
from duetime.errors import InvalidInput
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages

ReminderId = Annotated[int, Path(ge=1, le=2**63 - 1)]

_ROWS = 100
_CALENDAR_WEEKS = 5
_CALENDAR_MOST = 2000
"""How many reminders the calendar counts; a day beyond them is not shown as empty."""


class Day(msgspec.Struct, frozen=True):
    """A day of the calendar."""

    date: date
    count: int | None
    """None: it was not counted."""
    is_today: bool


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/reminders", "reminders.html")
    async def show_reminders(ask: Ask) -> dict[str, Any]:
        chosen = ask.query.get("status") or "armed"
        if chosen not in list(ReminderStatus):
            raise InvalidInput(f"There is no status {chosen!r:.60} of reminders.")
        reminders: Page[Reminder] = await app.reminders.list(
            status=ReminderStatus(chosen), after=ask.query.get("after") or None, limit=_ROWS
        )
        is_agenda = chosen == ReminderStatus.ARMED
        calendar: list[list[Day]] = []
        if is_agenda and not ask.query.get("after"):
            until = ask.now + timedelta(weeks=_CALENDAR_WEEKS)
            coming = await app.stats._armed_times(until, _CALENDAR_MOST)
            calendar = make_calendar(coming, ask)
        return {
            "chosen": chosen,
            "statuses": [status.value for status in ReminderStatus],
            "days": group_by_day(reminders, ask.zone) if is_agenda else None,
            "reminders": reminders,
            "calendar": calendar,
        }

    @pages.page("/reminders/{reminder_id}", "reminder.html")
    async def show_reminder(ask: Ask, reminder_id: ReminderId) -> dict[str, Any]:
        return {
            "reminder": await app.reminders.get(reminder_id),
            "deliveries": await app.reminders.deliveries(reminder_id),
            "explanation": await app.reminders.explain(reminder_id),
        }

    @pages.action("/reminders/{reminder_id}/acknowledge")
    async def acknowledge(ask: Ask, reminder_id: ReminderId) -> GoTo:
        await app.reminders.acknowledge(reminder_id, by=ask.visitor.name)
        return GoTo(["reminders", reminder_id], said="Acknowledged: it escalates no more.")

    @pages.action("/reminders/{reminder_id}/snooze")
    async def snooze(ask: Ask, reminder_id: ReminderId) -> GoTo:
        span = read_duration((await ask.form()).get("span", ""), name="The time to snooze")
        await app.reminders.snooze(reminder_id, span, by=ask.visitor.name)
        return GoTo(["reminders", reminder_id], said="It is sent again after that time.")

    @pages.action("/reminders/{reminder_id}/resend")
    async def resend(ask: Ask, reminder_id: ReminderId) -> GoTo:
        await app.reminders.resend(reminder_id, by=ask.visitor.name)
        return GoTo(["reminders", reminder_id], said="It is sent again now.")

    @pages.action("/reminders/{reminder_id}/send-anyway")
    async def send_anyway(ask: Ask, reminder_id: ReminderId) -> GoTo:
        await app.reminders.send_anyway(reminder_id, by=ask.visitor.name)
        return GoTo(["reminders", reminder_id], said="It is sent now.")

    return pages


def group_by_day(
    reminders: Sequence[Reminder], zone: ZoneInfo
) -> list[tuple[date, list[Reminder]]]:
    """Reminders in the order of their times, by the day in the viewer's zone."""
    days: list[tuple[date, list[Reminder]]] = []
    for one in reminders:
        day = (one.run_at or one.time).astimezone(zone).date()
        if not days or days[-1][0] != day:
            days.append((day, []))
        days[-1][1].append(one)
    return days


def make_calendar(coming: Sequence[datetime], ask: Ask) -> list[list[Day]]:
    """The weeks from this one on, with how many reminders are due on each day."""
    today = ask.now.astimezone(ask.zone).date()
    counts = Counter(time.astimezone(ask.zone).date() for time in coming)
    last = max(counts, default=today)
    monday = today - timedelta(days=today.weekday())
    days = [monday + timedelta(days=number) for number in range(7 * _CALENDAR_WEEKS)]
    is_cut = len(coming) == _CALENDAR_MOST

    def count(day: date) -> int | None:
        return None if day < today or (is_cut and day >= last) else counts.get(day, 0)

    made = [Day(day, count(day), day == today) for day in days]
    return [made[start : start + 7] for start in range(0, len(made), 7)]
