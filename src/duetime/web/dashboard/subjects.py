"""The screens of subjects: what people are reminded of, and all that happened about it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Literal, cast
from zoneinfo import ZoneInfo

import msgspec

from duetime.domain.access.token import TokenScope
from duetime.domain.audit import AuditEvent
from duetime.domain.reminders.delivery import Delivery
from duetime.domain.reminders.reminder import Reminder, ReminderStatus, Subject, SubjectStatus
from duetime.errors import InvalidInput
from duetime.web.dashboard.charts import TimeAxis
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages, read_local

_ROWS = 50
_MOST_REMINDERS = 200
_MOST_DELIVERIES = 100
_ARROW = 40
_GAP = 14
_HIDES = 9
_HINTED = 5
_TRIED = (ReminderStatus.SENT, ReminderStatus.FAILED, ReminderStatus.ARMED)
_WIDTH = 1100
_NAMES = 150
_LANE = 46
_HEAD = 34
_CHARACTER = 6.4
"""The width of a letter, by which labels that would overlap are left out."""

_SHAPES = {
    ReminderStatus.ARMED: "○",
    ReminderStatus.SENT: "●",
    ReminderStatus.SKIPPED: "✕",
    ReminderStatus.EXPIRED: "✕",
    ReminderStatus.SUPERSEDED: "✕",
    ReminderStatus.CANCELLED: "✕",
    ReminderStatus.FAILED: "✕",
}


class Dot(msgspec.Struct, frozen=True):
    """Something that happened, or will, on a lane of the timeline."""

    at: datetime
    kind: str
    """The state whose colour it has."""
    shape: str
    label: str
    hint: str
    x: float = 0
    side: Literal["right", "left"] | None = "right"
    """Where its label stands; None: there is no room for it."""


class Lane(msgspec.Struct, frozen=True):
    """A row of the timeline: the due time, the reminders of a recipient, people."""

    name: str
    y: int
    dots: list[Dot]


class Timeline(msgspec.Struct, frozen=True):
    """All that happened and will happen about a subject, on one axis."""

    axis: TimeAxis
    lanes: list[Lane]
    height: int
    now: float
    clock: str
    moves: list[tuple[float, float]]
    """From where to where its due time moved."""


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/subjects", "subjects.html")
    async def show_subjects(ask: Ask) -> dict[str, Any]:
        status = ask.query.get("status") or None
        subjects = await app.subjects.list(
            scope=ask.query.get("scope") or None,
            status=cast("SubjectStatus | None", status),
            after=ask.query.get("after") or None,
            limit=_ROWS,
        )
        return {"subjects": subjects, "chosen": status}

    @pages.page("/subjects/{ref}", "subject.html")
    async def show_subject(ask: Ask, ref: str) -> dict[str, Any]:
        subject = await app.subjects.get(ref)
        rules, source = await app.subjects.rules(ref)
        # Redacted here: the hints of the timeline repeat their reasons.
        reminders = app.redacted(await app.reminders.list(subject=ref, limit=_MOST_REMINDERS))
        sent = [one.id for one in reminders if one.status in _TRIED][-_MOST_DELIVERIES:]
        deliveries = app.redacted(await app.reminders.deliveries(*sent) if sent else ())
        events = app.redacted(await app.subjects.audit(ref, limit=_ROWS))
        return {
            "subject": subject,
            "scopes": await _scopes(subject),
            "rules": rules,
            "source": source,
            "reminders": reminders,
            "events": events,
            "timeline": draw_timeline(subject, reminders, deliveries, events, ask),
            "explanation": await app.subjects.explain(ref),
            "occurrences": await app.subjects.occurrences(ref, 8) if subject.is_repeating else (),
        }

    @pages.page("/subjects/{ref}/move", "subject_move.html", scope=TokenScope.OPERATE)
    async def preview_move(ask: Ask, ref: str) -> dict[str, Any]:
        """What would happen if the subject moved: a part of its page."""
        try:
            due = read_local(ask.query.get("due", ""), ask.zone)
            return {"preview": await app.subjects.preview_move(ref, due), "problem": None}
        except InvalidInput as error:
            return {"preview": None, "problem": str(error)}

    async def _scopes(subject: Subject) -> list[str]:
        """The scopes that the subject is in, the widest first."""
        found: list[str] = []
        ref = subject.scope
        while ref is not None and ref not in found:
            found.append(ref)
            ref = (await app.scopes.get(ref)).parent
        return found[::-1]

    @pages.action("/subjects/{ref}/complete")
    async def complete(ask: Ask, ref: str) -> GoTo:
        reason = (await ask.form()).get("reason") or None
        await app.subjects.complete(ref, reason=reason, by=ask.visitor.name)
        return GoTo(["subjects", ref], said="It is done: nobody is reminded of it any more.")

    return pages


def draw_timeline(
    subject: Subject,
    reminders: Sequence[Reminder],
    deliveries: Sequence[Delivery],
    events: Sequence[AuditEvent],
    ask: Ask,
) -> Timeline | None:
    """Place what happened on lanes; None if nothing did and nothing will."""
    lanes = _lanes(subject, reminders, deliveries, events, ask.zone)
    moments = [dot.at for _, dots in lanes for dot in dots]
    if not moments:
        return None
    start, end = min([*moments, ask.now]), max([*moments, ask.now])
    room = max((end - start) * 0.06, timedelta(minutes=1))
    axis = TimeAxis(start - room, end + room * 2.5, _WIDTH - _NAMES, ask.zone, _NAMES)
    placed = [
        Lane(name, _HEAD + number * _LANE, _place(dots, axis, axis.x(ask.now)))
        for number, (name, dots) in enumerate(lanes)
    ]
    dues = [dot.x for dot in placed[0].dots]
    moves = [(x, to) for x, to in pairwise(dues) if to - x > _ARROW] if subject.due_at else []
    clock = f"{ask.now.astimezone(ask.zone):%H:%M}"
    return Timeline(axis, placed, _HEAD + len(lanes) * _LANE + 4, axis.x(ask.now), clock, moves)


def _lanes(
    subject: Subject,
    reminders: Sequence[Reminder],
    deliveries: Sequence[Delivery],
    events: Sequence[AuditEvent],
    zone: ZoneInfo,
) -> list[tuple[str, list[Dot]]]:
    dues = {one.due_at for one in reminders}
    if subject.due_at is not None:
        dues.add(subject.due_at)
    lanes = [("Due time", [_due(at, subject, zone) for at in sorted(dues)])]
    for recipient in dict.fromkeys(one.recipient for one in reminders):
        name = f"To {recipient}" if recipient else "Reminders"
        lanes.append((name, [_reminder(one) for one in reminders if one.recipient == recipient]))
    if deliveries:
        lanes.append(("Deliveries", [_delivery(one) for one in deliveries]))
    people = [_acknowledged(one) for one in reminders if one.acknowledged_at is not None]
    people += [_event(event) for event in events if event.action.startswith("subject.")]
    if people:
        lanes.append(("People", people))
    return lanes


def _due(at: datetime, subject: Subject, zone: ZoneInfo) -> Dot:
    when = f"{at.astimezone(zone):%a %H:%M}"
    if at == subject.due_at or subject.due_at is None:
        return Dot(at, "running", "●", f"due {when}", "It is due")
    return Dot(at, "pending", "◌", f"was {when}", "It was due then, and has moved")


def _delivery(one: Delivery) -> Dot:
    """What a channel did with a reminder: when it took it, or last failed to."""
    at = one.sent_at or one.updated_at
    label = one.channel if one.status.accepted else f"{one.channel} {one.status}"
    hint = f"{one.channel}: {one.status}" + (f": {one.error}" if one.error else "")
    if one.attempts > 1:
        hint += f", after {one.attempts} tries"
    kind = "sent" if one.status.accepted else "failed" if one.status.gave_up else "retrying"
    return Dot(at, kind, {"sent": "■", "failed": "✕"}.get(kind, "↻"), label, hint)


def _reminder(one: Reminder) -> Dot:
    text = one.rule.text
    label = text if one.status is ReminderStatus.ARMED else f"{text} {one.status}"
    hint = f"{text}: {one.status}" + (f": {one.reason}" if one.reason else "")
    at = one.ended_at if one.status is ReminderStatus.SENT and one.ended_at else one.run_at
    return Dot(at or one.time, one.status.value, _SHAPES[one.status], label, hint)


def _acknowledged(one: Reminder) -> Dot:
    assert one.acknowledged_at is not None
    who = one.acknowledged_by or "somebody"
    label = f"{who} acknowledged"
    return Dot(one.acknowledged_at, "completed", "▲", label, f"{label} {one.rule.text}")


def _event(event: AuditEvent) -> Dot:
    verb = event.action.partition(".")[2].replace("_", " ") or event.action
    label = f"{event.actor} {verb}"
    return Dot(event.at, "running", "▲", label, f"{event.actor}: {event.action}")


def _place(dots: Sequence[Dot], axis: TimeAxis, now: float) -> list[Dot]:
    """Where the dots stand. A label stands where it runs neither into another dot or label nor
    over the line of now; else there is none."""
    merged = _merge(sorted(dots, key=lambda one: one.at), axis)
    placed: list[Dot] = []
    free_from = axis.left
    for place, dot in enumerate(merged):
        following = merged[place + 1].x - 8 if place + 1 < len(merged) else _WIDTH
        width = _GAP + _CHARACTER * len(dot.label)
        right, left = dot.x + width, dot.x - width
        crosses_right = dot.x < now - 2 and right > now
        crosses_left = dot.x > now + 2 and left < now
        if right <= following and not crosses_right:
            side: Literal["right", "left"] | None = "right"
        elif left >= free_from and not crosses_left:
            side = "left"
        else:
            side = "right" if right <= following else None
        free_from = right if side == "right" else dot.x + 8
        placed.append(msgspec.structs.replace(dot, side=side))
    return placed


def _merge(dots: Sequence[Dot], axis: TimeAxis) -> list[Dot]:
    """Make one of dots that would hide each other, if they say the same."""
    found: list[Dot] = []
    counts: list[int] = []
    for dot in dots:
        x = axis.x(dot.at)
        last = found[-1] if found else None
        if last and x - last.x < _HIDES and (dot.kind, dot.label) == (last.kind, last.label):
            counts[-1] += 1
            if counts[-1] <= _HINTED:
                found[-1] = msgspec.structs.replace(last, hint=f"{last.hint}; {dot.hint}")
        else:
            found.append(msgspec.structs.replace(dot, x=x))
            counts.append(1)
    return [
        dot if count == 1 else msgspec.structs.replace(dot, label=f"{dot.label} ×{count}")
        for dot, count in zip(found, counts, strict=True)
    ]
