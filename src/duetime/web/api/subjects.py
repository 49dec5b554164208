"""`/api/v1/subjects`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Annotated, Any

import msgspec
from fastapi import Query, Response
from msgspec import UNSET, Meta, UnsetType
from pydantic import AwareDatetime

from duetime.app import Duetime
from duetime.domain.access.visitor import Visitor
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation
from duetime.domain.reasons import Reason as Why
from duetime.domain.reminders.reminder import MAX_RECIPIENTS, Subject, SubjectStatus
from duetime.web.access import Access
from duetime.web.api.fields import (
    After,
    Count,
    Limit,
    Moment,
    MomentQuery,
    Name,
    NamePath,
    PutAnswer,
    Reason,
    ReasonQuery,
    Rules,
    Sought,
    Spec,
    given,
    rules_answer,
)
from duetime.web.api.reminders import ReminderAnswer, reminder_answer
from duetime.web.api.routing import Routes, page_of

MAX_MANY = 1000
CALENDAR = "text/calendar"
_MAX_CALENDAR = 8 * 1024 * 1024
DueQuery = Annotated[
    AwareDatetime, Query(description="ISO 8601 with an offset: `2026-03-01T09:00:00Z`.")
]
Recipients = Annotated[list[Name], Meta(max_length=MAX_RECIPIENTS)]


class SubjectBody(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What people are reminded of. It is `due` once, or `repeats`."""

    due: Moment | UnsetType | None = UNSET
    """Null: it has no due time, and nobody is reminded."""
    repeats: Spec | Annotated[list[Spec], Meta(max_length=100)] | None = None
    """Cron, RRULE, or an object with `start`, `until`, `exclude`, `exceptions`."""
    scope: Name | None = None
    tz: Name = "UTC"
    remind: Rules | None = None
    """Null: the rules of its scope."""
    recipients: Recipients = []
    data: Annotated[dict[str, Any], Meta(description="What messages may say of it.")] = {}


class NamedSubjectBody(SubjectBody, kw_only=True):
    """A subject with its reference."""

    ref: Name


class SubjectsBody(msgspec.Struct, forbid_unknown_fields=True):
    """Subjects to be put, all or none."""

    subjects: Annotated[list[NamedSubjectBody], Meta(max_length=MAX_MANY)]


class SubjectsAnswer(msgspec.Struct):
    results: dict[str, str]
    """By reference: `added`, `changed` or `same`."""


class SubjectAnswer(msgspec.Struct, kw_only=True):
    """What people are reminded of."""

    id: int
    ref: str
    scope: str | None
    due_at: datetime | None
    repeats: dict[str, Any] | None
    """When it is due again and again; then `due_at` is null."""
    tz: str
    status: SubjectStatus
    rules: list[dict[str, Any]] | None
    """Its own, as `remind` takes them; null: those of its scope."""
    recipients: tuple[str, ...]
    data: dict[str, Any]
    revision: int
    problem: Why | None
    """What of a tracked row could not be used."""
    stale: bool
    """It has changed, and a worker has yet to compute its reminders."""


class RulesAnswer(msgspec.Struct):
    """The rules that hold for a subject."""

    rules: Sequence[str]
    source: str | None
    """The level that they come from."""


class CompleteBody(msgspec.Struct, forbid_unknown_fields=True):
    occurrence: Moment | None = None
    """Only this one of a subject that repeats."""
    reason: Reason | None = None


class OccurrenceBody(msgspec.Struct, forbid_unknown_fields=True):
    occurrence: Moment


class MoveBody(msgspec.Struct, forbid_unknown_fields=True):
    occurrence: Moment
    to: Moment


class OccurrenceAnswer(msgspec.Struct):
    due: datetime
    original: datetime
    """The time that it had before it was moved."""


class ImportBody(msgspec.Struct, forbid_unknown_fields=True):
    """Events of an iCalendar file, to be put as subjects."""

    calendar: Annotated[str, Meta(min_length=1, max_length=_MAX_CALENDAR)]
    scope: Name | None = None
    tz: Name | None = None
    remind: Rules | None = None
    recipients: Recipients | None = None
    dry_run: bool = False


class LeftOutEvent(msgspec.Struct):
    uid: str
    reason: str


class ImportAnswer(msgspec.Struct):
    results: dict[str, str]
    """By reference: `added`, `changed` or `same`."""
    problems: list[LeftOutEvent]
    """Events that were left out."""


class MovePreviewAnswer(msgspec.Struct):
    """What would happen to the reminders of a subject if it moved."""

    superseded: list[ReminderAnswer]
    """Those that are armed now, and would no longer be sent."""
    armed: list[ReminderAnswer]
    """Those that would be armed; their ids are not given to them when it really moves."""
    kept: list[ReminderAnswer]
    """Those that are armed and would stay as they are."""


def routes(app: Duetime, access: Access) -> Routes:
    routes = Routes(app, access, noun="subjects")

    @routes.get("/subjects", answer=page_of(SubjectAnswer))
    async def list_subjects(
        scope: Sought = None,
        status: SubjectStatus | None = None,
        limit: Limit = DEFAULT_LIMIT,
        after: After = None,
    ) -> Page[SubjectAnswer]:
        """List subjects, the next due first. `scope`: that one and all inside it."""
        found = await app.subjects.list(scope=scope, status=status, limit=limit, after=after)
        return Page(map(_answer, found), next=found.next)

    @routes.put("/subjects", body=SubjectsBody, answer=SubjectsAnswer, problems=[404])
    async def put_subjects(body: Any, visitor: Visitor) -> SubjectsAnswer:
        """Put many subjects, all or none."""

        def define() -> list[Subject]:
            return [app.subjects.define(one.ref, **given(one, "ref")) for one in body.subjects]

        # Off the loop: some recurrences are only read, or refused, after a long search.
        subjects = await asyncio.to_thread(define)
        return SubjectsAnswer(await app.subjects.put_many(subjects, by=visitor.name))

    @routes.get(
        "/subjects.ics",
        answer=Annotated[str, Meta(description="iCalendar")],
        media_type=CALENDAR,
        problems=[404],
    )
    async def export_subjects(
        ref: Annotated[
            list[Annotated[str, Query(min_length=1, max_length=200)]], Query(max_length=1000)
        ] = [],  # noqa: B006
        scope: Sought = None,
    ) -> Response:
        """Export subjects and their reminders as an iCalendar file: those named, or the open ones
        in a scope, or all open ones."""
        content = await app.subjects.export_ical(ref or None, scope=scope)
        return Response(content, media_type=CALENDAR)

    @routes.post("/subjects/import_ical", body=ImportBody, answer=ImportAnswer, problems=[404])
    async def import_subjects(body: Any, visitor: Visitor) -> ImportAnswer:
        """Put the events of an iCalendar file as subjects."""
        done = await app.subjects.import_ical(
            body.calendar, by=visitor.name, **given(body, "calendar")
        )
        left_out = [LeftOutEvent(one.uid, one.reason) for one in done.problems]
        return ImportAnswer(done.results, left_out)

    @routes.get("/subjects/{ref}", answer=SubjectAnswer, problems=[404])
    async def get_subject(ref: NamePath) -> SubjectAnswer:
        """Show a subject."""
        return _answer(await app.subjects.get(ref))

    @routes.put(
        "/subjects/{ref}",
        body=SubjectBody,
        example={
            "due": "2026-05-01T18:00:00Z",
            "recipients": ["ann", "bob"],
            "remind": ["-1d at 09:00", "-1h"],
            "data": {"title": "Finals"},
        },
        answer=PutAnswer,
        problems=[404],
    )
    async def put_subject(ref: NamePath, body: Any, visitor: Visitor) -> PutAnswer:
        """Add a subject or change it, and update its reminders, in one transaction."""
        return PutAnswer(await app.subjects.put(ref, by=visitor.name, **given(body)))

    @routes.delete("/subjects/{ref}", problems=[404])
    async def delete_subject(ref: NamePath, visitor: Visitor, reason: ReasonQuery = None) -> None:
        """Delete a subject and its reminders: none is sent."""
        await app.subjects.delete(ref, reason=reason, by=visitor.name)

    @routes.post("/subjects/{ref}/complete", body=CompleteBody, problems=[404])
    async def complete_subject(ref: NamePath, body: Any, visitor: Visitor) -> None:
        """Mark a subject, or one occurrence of it, as done, and cancel its unsent reminders."""
        await app.subjects.complete(
            ref, occurrence=body.occurrence, reason=body.reason, by=visitor.name
        )

    @routes.post("/subjects/{ref}/skip", body=OccurrenceBody, problems=[404])
    async def skip_occurrence(ref: NamePath, body: Any, visitor: Visitor) -> None:
        """Leave out one occurrence of a subject that repeats."""
        await app.subjects.skip(ref, body.occurrence, by=visitor.name)

    @routes.post("/subjects/{ref}/move", body=MoveBody, problems=[404])
    async def move_occurrence(ref: NamePath, body: Any, visitor: Visitor) -> None:
        """Move one occurrence of a subject that repeats: its reminders go with it."""
        await app.subjects.move(ref, body.occurrence, body.to, by=visitor.name)

    @routes.get("/subjects/{ref}/preview_move", answer=MovePreviewAnswer, problems=[404])
    async def preview_move(ref: NamePath, due: DueQuery) -> MovePreviewAnswer:
        """Show what would become of the reminders if a subject were due then; change nothing."""
        found = await app.subjects.preview_move(ref, due)
        return MovePreviewAnswer(
            superseded=[*map(reminder_answer, found.superseded)],
            armed=[*map(reminder_answer, found.armed)],
            kept=[*map(reminder_answer, found.kept)],
        )

    @routes.post("/subjects/{ref}/restore", body=OccurrenceBody, problems=[404])
    async def restore_occurrence(ref: NamePath, body: Any, visitor: Visitor) -> None:
        """Undo the change of one occurrence: it is due again as the recurrence says."""
        await app.subjects.restore(ref, body.occurrence, by=visitor.name)

    @routes.get("/subjects/{ref}/occurrences", answer=list[OccurrenceAnswer], problems=[404])
    async def list_occurrences(
        ref: NamePath, n: Count = 10, since: MomentQuery = None
    ) -> Sequence[OccurrenceAnswer]:
        """Show when a subject that repeats is due next."""
        found = await app.subjects.occurrences(ref, n, since=since)
        return [OccurrenceAnswer(due, original) for due, original in found]

    @routes.get("/subjects/{ref}/rules", answer=RulesAnswer, problems=[404])
    async def get_rules(ref: NamePath) -> RulesAnswer:
        """Show the rules that hold for a subject, and the level that they come from."""
        return RulesAnswer(*await app.subjects.rules(ref))

    @routes.get("/subjects/{ref}/explain", answer=Explanation, problems=[404])
    async def explain_subject(ref: NamePath) -> Explanation:
        """Explain who is reminded of a subject next, or why nobody is."""
        return await app.subjects.explain(ref)

    @routes.get("/subjects/{ref}/audit", answer=page_of(AuditEvent))
    async def audit_subject(
        ref: NamePath, limit: Limit = DEFAULT_LIMIT, after: After = None
    ) -> Page[AuditEvent]:
        """List who changed a subject, and what became of its reminders, newest first."""
        return await app.subjects.audit(ref, limit=limit, after=after)

    return routes


def _answer(subject: Subject) -> SubjectAnswer:
    repeats = None if subject.repeats is None else subject.repeats.to_json()
    return SubjectAnswer(
        rules=rules_answer(subject.rules),
        repeats=repeats,
        **{name: getattr(subject, name) for name in _SAME},
    )


_SAME = [name for name in SubjectAnswer.__struct_fields__ if name not in ("rules", "repeats")]
