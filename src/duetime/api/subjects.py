"""`app.subjects`: what people are reminded of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import (
    check_actor,
    check_finite,
    check_json_text,
    check_many,
    check_moment,
    check_name,
    check_names,
    check_sought,
    check_text,
)
from duetime.domain.page import (
    DEFAULT_LIMIT,
    MAX_LIMIT,
    Id,
    Moment,
    Page,
    check_limit,
    make_page,
    read_cursor,
)
from duetime.domain.reasons import Explanation, Reason
from duetime.domain.reminders.admission import why_muted
from duetime.domain.reminders.arming import Level, resolve_rules
from duetime.domain.reminders.explain_subject import explain_subject
from duetime.domain.reminders.recurrence import (
    Occurrence,
    OccurrenceChange,
    RepeatsLike,
    parse_repeats,
)
from duetime.domain.reminders.reminder import (
    MAX_RECIPIENTS,
    MovePreview,
    Reminder,
    ReminderStatus,
    Subject,
    SubjectStatus,
)
from duetime.domain.reminders.rule import read_moment
from duetime.domain.reminders.rule_text import RulesLike, parse_rules
from duetime.domain.schedules.cron import parse_zone
from duetime.errors import InvalidInput, RecipientNotFound, SubjectNotFound
from duetime.storage.reminders.occurrences import OccurrenceStatements
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.integrations.ical.exchange import Imported

Make = Callable[[ReminderStatements], Statements]
_UNSAID: Any = object()

_MAX_OCCURRENCES = 1000
_MAX_DATA_BYTES = 64 * 1024
_MAX_REASON_LENGTH = 1000


async def perform(app: Duetime, make: Make, tx: Any = None, **how: bool) -> Any:
    """Run statements in a transaction of their own, or in the caller's."""
    return await app._perform(lambda dialect: make(ReminderStatements(dialect)), tx, **how)


class Subjects:
    """`app.subjects`. `app.subjects["game:42"]` is one of them."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def __getitem__(self, ref: str) -> SubjectHandle:
        return SubjectHandle(self, check_sought(ref, what="subject"))

    def define(
        self,
        ref: str,
        *,
        due: datetime | None = _UNSAID,
        repeats: RepeatsLike | None = None,
        scope: str | None = None,
        tz: str = "UTC",
        remind: RulesLike | None = None,
        recipients: Iterable[str] = (),
        data: Mapping[str, Any] | None = None,
    ) -> Subject:
        """Return a subject, checked but not stored, for `put_many`."""
        _check_when(due, repeats)
        to = check_names(recipients, what="recipients", example="recipients=['ann', 'bob']")
        if len(to) > MAX_RECIPIENTS:
            raise InvalidInput(f"A subject can have at most {MAX_RECIPIENTS} recipients.")
        return Subject(
            ref=check_name(ref, what="subject"),
            scope=None if scope is None else check_name(scope, what="scope"),
            due_at=None if due in (None, _UNSAID) else check_moment(due, name="due"),
            repeats=None if repeats is None else parse_repeats(repeats, parse_zone(tz).key),
            tz=parse_zone(tz).key,
            status="open",
            rules=None if remind is None else parse_rules(remind),
            data={} if data is None else _plain(data),
            recipients=to,
        )

    async def put(
        self,
        ref: str,
        *,
        due: datetime | None = _UNSAID,
        repeats: RepeatsLike | None = None,
        scope: str | None = None,
        tz: str = "UTC",
        remind: RulesLike | None = None,
        recipients: Iterable[str] = (),
        data: Mapping[str, Any] | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> str:
        """Add a subject or change it, and update its reminders, in one transaction.

        It is `due` once, or `repeats`: a cron expression, an RRULE, or a mapping with more (see
        `domain/reminders/recurrence.py`). Exceptions of a recurrence stay unless it names others.

        If it moves, the old reminders are superseded and new ones armed. A change of `data` alone
        never sends a reminder again. Putting a completed subject opens it again. Returns `added`,
        `changed` or `same`.
        """
        define = partial(
            self.define,
            ref,
            due=due,
            repeats=repeats,
            scope=scope,
            tz=tz,
            remind=remind,
            recipients=recipients,
            data=data,
        )
        # Off the loop: some recurrences are only read, or refused, after a long search.
        subject = define() if repeats is None else await asyncio.to_thread(define)
        return (await self.put_many([subject], by=by, tx=tx))[ref]

    async def put_many(
        self, subjects: Iterable[Subject], *, by: str = "unknown", tx: Any = None
    ) -> dict[str, str]:
        """Put many subjects, made by `define`: all or none."""
        takes = "put_many() takes subjects returned by subjects.define()"
        subjects = check_many(subjects, takes=takes)
        for subject in subjects:
            if not isinstance(subject, Subject):
                raise InvalidInput(f"{takes}, got {subject!r:.60}.")
        refs = [subject.ref for subject in subjects]
        if len(set(refs)) < len(refs):
            raise InvalidInput("The same subject is given twice. References must be unique.")
        actor = check_actor(by)
        answer: dict[str, str] = await perform(
            self._app,
            lambda s: s.put(subjects, actor=actor),
            tx,
            computes=any(subject.repeats is not None for subject in subjects),
        )
        return answer

    async def complete(
        self,
        ref: str,
        *,
        occurrence: datetime | None = None,
        reason: str | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> None:
        """Mark the subject as done, and cancel its unsent reminders. Raises `SubjectNotFound`.

        `occurrence`: only this one of a subject that repeats. `reason`: shown with its reminders
        and in the audit; only for a whole subject.
        """
        if occurrence is None:
            await self._close(ref, by, tx, reason=reason, delete=False)
        elif reason is not None:
            raise InvalidInput(
                "reason= applies to a whole subject and cannot be combined with occurrence=."
            )
        else:
            await self._change(ref, occurrence, "done", by, tx)

    async def skip(
        self, ref: str, occurrence: datetime, *, by: str = "unknown", tx: Any = None
    ) -> None:
        """Skip one occurrence of a subject that repeats."""
        await self._change(ref, occurrence, "skip", by, tx)

    async def move(
        self,
        ref: str,
        occurrence: datetime,
        to: datetime,
        *,
        by: str = "unknown",
        tx: Any = None,
    ) -> None:
        """Move one occurrence of a subject that repeats, and its reminders with it."""
        await self._change(ref, occurrence, read_moment(to, name="to"), by, tx)

    async def preview_move(self, ref: str, due: datetime) -> MovePreview:
        """Return what would become of the reminders if the subject were due then; change nothing.

        The move is really made, in a transaction that is then rolled back. Raises
        `SubjectNotFound`, and `InvalidInput` for a subject that repeats or is done.
        """
        check_moment(due, name="due")
        subject = await self.get(ref)
        if subject.repeats is not None or subject.status != "open":
            raise InvalidInput(f"The subject {ref!r} repeats or is done: it cannot be moved.")
        moved = msgspec.structs.replace(subject, due_at=due)

        def rehearse(statements: ReminderStatements) -> Statements:
            def armed() -> Statements:
                found = yield from statements.about(
                    ref, status=ReminderStatus.ARMED, after=None, limit=MAX_LIMIT
                )
                return {one.id: one for one in found}

            before = yield from armed()
            yield from statements.put([moved], actor="preview")
            after = yield from armed()
            raise _Rehearsed(before, after)

        try:
            await perform(self._app, rehearse)
        except _Rehearsed as done:
            before, after = done.before, done.after
        return MovePreview(
            superseded=tuple(one for key, one in before.items() if key not in after),
            armed=tuple(one for key, one in after.items() if key not in before),
            kept=tuple(one for key, one in before.items() if key in after),
        )

    async def restore(
        self, ref: str, occurrence: datetime, *, by: str = "unknown", tx: Any = None
    ) -> None:
        """Undo the change of one occurrence: it is due when the recurrence says."""
        await self._change(ref, occurrence, None, by, tx)

    async def occurrences(
        self, ref: str, n: int = 10, *, since: datetime | None = None
    ) -> Sequence[Occurrence]:
        """Return when a subject that repeats is due next, from `since` or now on."""
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= _MAX_OCCURRENCES:
            raise InvalidInput(f"n must be between 1 and {_MAX_OCCURRENCES}, got {n!r}.")
        subject = await self.get(ref)
        if subject.repeats is None:
            raise InvalidInput(f"The subject {ref!r} does not repeat.")
        start = await self._app.now() if since is None else read_moment(since, name="since")
        return await asyncio.to_thread(subject.repeats.first, start, n)

    async def delete(
        self, ref: str, *, reason: str | None = None, by: str = "unknown", tx: Any = None
    ) -> None:
        """Delete the subject and its reminders: none is sent. The audit has the `reason`."""
        await self._close(ref, by, tx, reason=reason, delete=True)

    async def get(self, ref: str) -> Subject:
        """Return the subject; raise `SubjectNotFound`."""
        check_sought(ref, what="subject")
        found = await perform(self._app, lambda s: s.subjects([ref]), reads=True)
        if not found:
            raise SubjectNotFound(ref)
        subject: Subject = found[0]
        return subject

    async def list(
        self,
        *,
        scope: str | None = None,
        status: SubjectStatus | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[Subject]:
        """Return subjects, the next due first, then those that are not due or repeat.

        `scope`: of that scope and all inside it. `status`: `open` or `done`. `after`: the `next` of
        the previous page.
        """
        if status not in (None, "open", "done"):
            raise InvalidInput(f"{status!r} is not a status of a subject. Use one of: open, done.")
        if scope is not None:
            check_sought(scope, what="scope")
        position = read_cursor(after, order="subjects", shape=tuple[Moment | None, Id])
        most = check_limit(limit) + 1
        found = await perform(
            self._app,
            lambda s: s.list_subjects(scope=scope, status=status, after=position, limit=most),
            reads=True,
        )
        return make_page(
            found, limit=limit, order="subjects", position=lambda one: (one.due_at, one.id)
        )

    iterate = iterated(list)

    async def rules(self, ref: str) -> tuple[Sequence[str], str | None]:
        """Return the rules that apply to a subject, and the level that they come from."""
        subject = await self.get(ref)
        levels = await perform(self._app, lambda s: s.levels(subject), reads=True)
        resolved = resolve_rules(levels)
        return [rule.text for rule in resolved.rules], resolved.source

    async def explain(self, ref: str) -> Explanation:
        """Explain who is reminded of the subject next, or why nobody is.

        Raises `SubjectNotFound`.
        """
        subject = await self.get(ref)
        levels = await perform(self._app, lambda s: s.levels(subject), reads=True)
        reminders = await self._app.reminders.list(subject=ref, limit=MAX_LIMIT)
        next_due = None
        if subject.repeats is not None and subject.status == "open":
            coming = await self.occurrences(ref, 1)
            next_due = coming[0].due if coming else None
        return explain_subject(
            subject,
            levels=levels,
            reminders=reminders,
            muted=await self._find_muted(levels, reminders),
            next_due=next_due,
            now=await self._app.now(),
        )

    async def _find_muted(
        self, levels: Sequence[Level], reminders: Sequence[Reminder]
    ) -> Sequence[Reason]:
        """Return who has muted the next reminder that is armed for them."""
        armed = [one for one in reversed(reminders) if one.status is ReminderStatus.ARMED]
        scopes = [level.name for level in levels[1:]]
        found: list[Reason] = []
        for reminder in {one.recipient: one for one in armed if one.recipient}.values():
            with suppress(RecipientNotFound):
                recipient = await self._app.recipients.get(reminder.recipient)
                if why := why_muted(recipient, reminder, scopes):
                    found.append(why)
        return found

    async def export_ical(
        self, refs: Iterable[str] | None = None, *, scope: str | None = None
    ) -> bytes:
        """Return subjects and their reminders as an iCalendar file.

        Exports those named, or the open ones in a scope and in all scopes inside it, or all open
        ones.
        """
        from duetime.integrations.ical.exchange import export_ical

        return await export_ical(self._app, refs, scope=scope)

    async def import_ical(
        self,
        data: bytes | str,
        *,
        scope: str | None = None,
        tz: str | None = None,
        remind: RulesLike | None = None,
        recipients: Iterable[str] | None = None,
        dry_run: bool = False,
        by: str = "unknown",
        tx: Any = None,
    ) -> Imported:
        """Put the events of an iCalendar file as subjects; see the guide on recurring subjects."""
        from duetime.integrations.ical.exchange import import_ical

        return await import_ical(
            self._app, data, scope=scope, tz=tz, remind=remind, recipients=recipients,
            dry_run=dry_run, by=by, tx=tx,
        )  # fmt: skip

    async def audit(
        self, ref: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the subject, and what became of its reminders, newest first."""
        entity = f"subject:{check_sought(ref, what='subject')}"
        return await self._app.audit.list(entity=entity, limit=limit, after=after)

    async def _change(
        self, ref: str, occurrence: datetime, exception: OccurrenceChange | None, by: str, tx: Any
    ) -> None:
        check_sought(ref, what="subject")
        actor = check_actor(by)
        await perform(
            self._app,
            lambda s: OccurrenceStatements(s.dialect).change_occurrence(
                ref, occurrence, exception, actor=actor
            ),
            tx,
            computes=True,
        )

    async def _close(self, ref: str, by: str, tx: Any, *, reason: str | None, delete: bool) -> None:
        check_sought(ref, what="subject")
        actor = check_actor(by)
        why = None if reason is None else _reason(reason)

        def close(statements: ReminderStatements) -> Statements:
            return statements.close(ref, actor=actor, reason=why, delete=delete)

        if not await perform(self._app, close, tx):
            raise SubjectNotFound(ref)


class _Rehearsed(Exception):
    """Undoes a transaction, and brings back what was found in it."""

    def __init__(self, before: dict[int, Reminder], after: dict[int, Reminder]) -> None:
        super().__init__()
        self.before = before
        self.after = after


class SubjectHandle(Handle[Subjects, str]):
    """One subject, by its reference."""

    @property
    def ref(self) -> str:
        return self._ref

    put = bound(Subjects.put)
    get = bound(Subjects.get)
    complete = bound(Subjects.complete)
    skip = bound(Subjects.skip)
    move = bound(Subjects.move)
    preview_move = bound(Subjects.preview_move)
    restore = bound(Subjects.restore)
    occurrences = bound(Subjects.occurrences)
    rules = bound(Subjects.rules)
    delete = bound(Subjects.delete)
    explain = bound(Subjects.explain)
    audit = bound(Subjects.audit)


def _check_when(due: Any, repeats: Any) -> None:
    if repeats is None:
        if due is _UNSAID:
            raise InvalidInput(
                "Either due= or repeats= is required. Use due=None for a subject without a due "
                "time."
            )
    elif due not in (None, _UNSAID):
        raise InvalidInput(
            "due= and repeats= cannot be combined. To set the first time of a recurring subject, "
            "give its start: repeats={'rrule': …, 'start': …}."
        )


def _reason(text: Any) -> str:
    reason = check_text(text, what="The reason")
    if not 1 <= len(reason) <= _MAX_REASON_LENGTH:
        raise InvalidInput(
            f"A reason must have 1 to {_MAX_REASON_LENGTH:,} characters, got {len(reason):,}."
        )
    return reason


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise InvalidInput(
            f"data must be a mapping, such as {{'title': 'Taxes'}}, got {data!r:.60}."
        )
    try:
        raw = msgspec.json.encode(dict(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"The data of a subject cannot be encoded as JSON: {error}.") from None
    if len(raw) > _MAX_DATA_BYTES:
        raise InvalidInput(
            f"The data of a subject must have at most {_MAX_DATA_BYTES:,} bytes of JSON, got "
            f"{len(raw):,} bytes. Store large data elsewhere and pass a reference."
        )
    check_json_text(raw, what="The data of a subject")
    check_finite(data, raw, what="A subject's data")
    plain: dict[str, Any] = msgspec.json.decode(raw)
    return plain
