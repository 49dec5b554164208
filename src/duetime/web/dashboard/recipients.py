"""The screens of recipients: their clock, their channels, and what reaches them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.reminders.delivery import Delivery
from duetime.domain.schedules.cron import parse_zone
from duetime.domain.stats.agenda import RecipientWeek
from duetime.web.dashboard.charts import Cluster, TimeAxis, gather
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages

_ROWS = 50
_WIDTH = 1100
_NAMES = 90
_DAYS_BACK = 3
_DAYS = 10


class Lane(msgspec.Struct, frozen=True):
    """A row of the chart: what was sent, what failed, what is to come."""

    name: str
    state: str
    shape: str
    marks: list[Cluster]


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/recipients", "recipients.html")
    async def show_recipients(ask: Ask) -> dict[str, Any]:
        return {
            "recipients": await app.recipients.list(
                after=ask.query.get("after") or None, limit=_ROWS
            )
        }

    @pages.page("/recipients/{ref}", "recipient.html")
    async def show_recipient(ask: Ask, ref: str) -> dict[str, Any]:
        recipient = await app.recipients.get(ref)
        week = await app.stats.recipient_week(
            ref, since=ask.now - timedelta(days=_DAYS_BACK), days=_DAYS, tz=ask.zone.key
        )
        shown = week.ended[:_ROWS]
        deliveries: dict[int, list[Delivery]] = {}
        for one in (
            await app.reminders.deliveries(*(message.id for message in shown)) if shown else ()
        ):
            deliveries.setdefault(one.reminder_id, []).append(one)
        zone = parse_zone(week.tz)
        axis = TimeAxis(week.since, week.until, _WIDTH - _NAMES, zone, _NAMES)
        return {
            "recipient": recipient,
            "their_zone": zone,
            "their_time": ask.now.astimezone(zone),
            "week": week,
            "axis": axis,
            "shades": [
                (axis.x(span.since), round(axis.x(span.until) - axis.x(span.since), 1))
                for span in week.quiet_spans
            ],
            "now_x": axis.x(ask.now),
            "days_back": _DAYS_BACK,
            "days_ahead": _DAYS - _DAYS_BACK,
            "ended": shown,
            "deliveries": app.redacted(deliveries),
            "lanes": _lanes(week, axis),
            "events": await app.recipients.audit(ref, limit=20),
        }

    @pages.action("/recipients/{ref}/mute")
    async def mute(ask: Ask, ref: str) -> GoTo:
        await app.recipients.mute(ref, "all", by=ask.visitor.name)
        return GoTo(["recipients", ref], said=f"{ref} gets nothing until unmuted.")

    @pages.action("/recipients/{ref}/unmute")
    async def unmute(ask: Ask, ref: str) -> GoTo:
        await app.recipients.unmute(ref, "all", by=ask.visitor.name)
        return GoTo(["recipients", ref], said=f"{ref} is unmuted.")

    return pages


def _lanes(week: RecipientWeek, axis: TimeAxis) -> list[Lane]:
    """What was sent, what failed (if something did), and what is to come, on their clock."""

    def place(at: datetime, subject: str, rule: str) -> tuple[float, str]:
        return axis.x(at), f"{subject} {rule}, {at.astimezone(axis.zone):%a %H:%M}"

    sent = [place(one.at, one.subject, one.rule) for one in week.ended if one.status == "sent"]
    failed = [place(one.at, one.subject, one.rule) for one in week.ended if one.status == "failed"]
    armed = [place(one.at, one.name, one.detail) for one in week.reminders]
    lanes = [Lane("sent", "sent", "●", gather(sent))]
    if failed:
        lanes.append(Lane("failed", "failed", "✕", gather(failed)))
    return [*lanes, Lane("armed", "armed", "○", gather(armed))]
