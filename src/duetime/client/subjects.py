"""`client.subjects`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.client.connection import Connection
from duetime.client.reminders import ReminderInfo
from duetime.client.schedules import PutAnswer
from duetime.client.scopes import rules_body
from duetime.domain.audit import AuditEvent
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation, Reason
from duetime.domain.reminders.recurrence import Occurrence, Recurrence, RepeatsLike
from duetime.domain.reminders.reminder import Subject, SubjectStatus
from duetime.domain.reminders.rule_text import RulesLike, parse_rules
from duetime.integrations.ical.exchange import Imported


class SubjectArguments(TypedDict, total=False):
    """The keyword arguments of `app.subjects.put`, other than `by` and `tx`."""

    due: datetime | None
    repeats: RepeatsLike | None
    scope: str | None
    tz: str
    remind: RulesLike | None
    recipients: Iterable[str]
    data: Mapping[str, Any]


class _Subject(msgspec.Struct):
    id: int
    ref: str
    scope: str | None
    due_at: datetime | None
    repeats: dict[str, Any] | None
    tz: str
    status: SubjectStatus
    rules: list[dict[str, Any]] | None
    recipients: tuple[str, ...]
    data: dict[str, Any]
    revision: int
    problem: Reason | None
    stale: bool


class MovePreviewInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What would happen to the reminders of a subject if it moved."""

    superseded: tuple[ReminderInfo, ...]
    """Those that are armed now, and would no longer be sent."""
    armed: tuple[ReminderInfo, ...]
    """Those that would be armed; their ids are not given to them when it really moves."""
    kept: tuple[ReminderInfo, ...]
    """Those that are armed and would stay as they are."""


class _Results(msgspec.Struct):
    results: dict[str, str]


class _Rules(msgspec.Struct):
    rules: list[str]
    source: str | None


class _Occurrence(msgspec.Struct):
    due: datetime
    original: datetime


class Subjects:
    """`client.subjects`: the verbs of `app.subjects`. `client.subjects["game:42"]` is one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def __getitem__(self, ref: str) -> SubjectHandle:
        return SubjectHandle(self, ref)

    async def put(self, ref: str, **options: Unpack[SubjectArguments]) -> str:
        """Add a subject or change it, and update its reminders, in one transaction.

        Returns `added`, `changed` or `same`. The options are those of `app.subjects.put`.
        """
        answer = await self._connection.call(
            "PUT /subjects/{ref}", PutAnswer, body=_body(options), ref=ref
        )
        return answer.result

    async def put_many(self, subjects: Iterable[Mapping[str, Any]]) -> dict[str, str]:
        """Put many subjects, all or none: each `{"ref": …}`, with the options of `put`."""
        body = {"subjects": [_body(subject) for subject in subjects]}
        return (await self._connection.call("PUT /subjects", _Results, body=body)).results

    async def get(self, ref: str) -> Subject:
        """Return the subject; raise `SubjectNotFound`."""
        return _read(await self._connection.call("GET /subjects/{ref}", _Subject, ref=ref))

    async def list(
        self,
        *,
        scope: str | None = None,
        status: SubjectStatus | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[Subject]:
        """Return subjects, the next due first. `scope`: that one and all inside it."""
        query = {"scope": scope, "status": status, "limit": limit, "after": after}
        page = await self._connection.page("GET /subjects", _Subject, query=query)
        return Page(map(_read, page), next=page.next)

    iterate = iterated(list)

    async def complete(
        self, ref: str, *, occurrence: datetime | None = None, reason: str | None = None
    ) -> None:
        """Mark the subject, or one occurrence of it, as done, and cancel its unsent reminders."""
        body = {"occurrence": occurrence, "reason": reason}
        await self._connection.call("POST /subjects/{ref}/complete", body=body, ref=ref)

    async def skip(self, ref: str, occurrence: datetime) -> None:
        """Leave out one occurrence of a subject that repeats."""
        body = {"occurrence": occurrence}
        await self._connection.call("POST /subjects/{ref}/skip", body=body, ref=ref)

    async def move(self, ref: str, occurrence: datetime, to: datetime) -> None:
        """Move one occurrence of a subject that repeats: its reminders go with it."""
        body = {"occurrence": occurrence, "to": to}
        await self._connection.call("POST /subjects/{ref}/move", body=body, ref=ref)

    async def preview_move(self, ref: str, due: datetime) -> MovePreviewInfo:
        """Return what would become of the reminders if the subject were due then; change
        nothing."""
        return await self._connection.call(
            "GET /subjects/{ref}/preview_move", MovePreviewInfo, query={"due": due}, ref=ref
        )

    async def restore(self, ref: str, occurrence: datetime) -> None:
        """Undo the change of one occurrence: it is due again as the recurrence says."""
        body = {"occurrence": occurrence}
        await self._connection.call("POST /subjects/{ref}/restore", body=body, ref=ref)

    async def occurrences(
        self, ref: str, n: int = 10, *, since: datetime | None = None
    ) -> Sequence[Occurrence]:
        """Return when a subject that repeats is due next."""
        found = await self._connection.call(
            "GET /subjects/{ref}/occurrences",
            builtins.list[_Occurrence],
            query={"n": n, "since": since},
            ref=ref,
        )
        return [Occurrence(one.due, one.original) for one in found]

    async def delete(self, ref: str, *, reason: str | None = None) -> None:
        """Delete the subject and its reminders: none is sent."""
        await self._connection.call("DELETE /subjects/{ref}", query={"reason": reason}, ref=ref)

    async def rules(self, ref: str) -> tuple[Sequence[str], str | None]:
        """Return the rules that hold for the subject, and the level that they come from."""
        found = await self._connection.call("GET /subjects/{ref}/rules", _Rules, ref=ref)
        return found.rules, found.source

    async def explain(self, ref: str) -> Explanation:
        """Explain who is reminded of the subject next, or why nobody is."""
        return await self._connection.call("GET /subjects/{ref}/explain", Explanation, ref=ref)

    async def audit(
        self, ref: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the subject, and what became of its reminders, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /subjects/{ref}/audit", AuditEvent, query=query, ref=ref
        )

    async def export_ical(
        self, refs: Iterable[str] | None = None, *, scope: str | None = None
    ) -> bytes:
        """Return subjects and their reminders as an iCalendar file.

        Those named, or the open ones in a scope and inside it, or all open ones.
        """
        query = {"ref": [*(refs or ())], "scope": scope}
        return await self._connection.content("GET /subjects.ics", query=query)

    async def import_ical(
        self,
        data: bytes | str,
        *,
        scope: str | None = None,
        tz: str | None = None,
        remind: RulesLike | None = None,
        recipients: Iterable[str] | None = None,
        dry_run: bool = False,
    ) -> Imported:
        """Put the events of an iCalendar file as subjects."""
        body = {
            "calendar": data.decode() if isinstance(data, bytes) else data,
            "scope": scope,
            "tz": tz,
            "remind": rules_body(remind),
            "recipients": None if recipients is None else [*recipients],
            "dry_run": dry_run,
        }
        return await self._connection.call("POST /subjects/import_ical", Imported, body=body)


class SubjectHandle(Handle[Subjects, str]):
    """One subject of the service, by its reference."""

    put = bound(Subjects.put)
    get = bound(Subjects.get)
    complete = bound(Subjects.complete)
    skip = bound(Subjects.skip)
    move = bound(Subjects.move)
    preview_move = bound(Subjects.preview_move)
    restore = bound(Subjects.restore)
    occurrences = bound(Subjects.occurrences)
    delete = bound(Subjects.delete)
    rules = bound(Subjects.rules)
    explain = bound(Subjects.explain)
    audit = bound(Subjects.audit)


def _body(options: Mapping[str, Any]) -> dict[str, Any]:
    given = dict(options)
    if "remind" in given:
        given["remind"] = rules_body(given["remind"])
    if "recipients" in given:
        given["recipients"] = [*given["recipients"]]
    if isinstance(given.get("repeats"), Recurrence):
        given["repeats"] = given["repeats"].to_json()
    return given


def _read(answer: _Subject) -> Subject:
    fields = msgspec.structs.asdict(answer)
    if answer.rules is not None:
        fields["rules"] = parse_rules(answer.rules)
    if answer.repeats is not None:
        text = msgspec.json.encode(answer.repeats).decode()
        fields["repeats"] = Recurrence.from_json(text, answer.tz)
    return Subject(**fields)
