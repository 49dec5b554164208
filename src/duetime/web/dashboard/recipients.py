"""The screens of recipients: their clock, their channels, and what reaches them."""

from __future__ import annotations

from typing import Any

from duetime.domain.schedules.cron import parse_zone
from duetime.web.dashboard.charts import TimeAxis
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages

_ROWS = 50
_WIDTH = 1100


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
        week = await app.stats.recipient_week(ref, since=ask.now, tz=ask.zone.key)
        zone = parse_zone(week.tz)
        axis = TimeAxis(week.since, week.until, _WIDTH, zone)
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
            "dots": [(axis.x(one.at), one) for one in week.reminders],
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
