"""`app.scopes`, `app.subjects`, `app.reminders`: reminders that follow your data."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.domain.duration import Duration, parse_duration
from duetime.domain.finite import check_finite
from duetime.domain.jobs.job import (
    check_moment,
    check_name,
    check_names,
    check_sought,
    check_text,
)
from duetime.domain.reminders.arming import resolve_rules
from duetime.domain.reminders.delivery import Delivery
from duetime.domain.reminders.recurrence import Exception_, Occurrence, parse_repeats
from duetime.domain.reminders.reminder import (
    MOST_RECIPIENTS,
    Reminder,
    ReminderStatus,
    Resent,
    Subject,
    explain_reminder,
)
from duetime.domain.reminders.rule import read_moment, say_moment
from duetime.domain.reminders.rule_text import parse_rules
from duetime.domain.schedules.cron import parse_zone
from duetime.errors import InvalidInput, ReminderNotFound, SubjectNotFound
from duetime.reminders.deliveries import acknowledge, find_deliveries, id_of, snooze
from duetime.reminders.resending import find_ended, resend, resend_many
from duetime.storage.reminders.occurrences import OccurrenceStatements
from duetime.storage.reminders.reminders import ReminderStatements, ScopeInfo
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.integrations.ical.exchange import Imported

Make = Callable[[ReminderStatements], Statements]
_UNSAID: Any = object()

_MOST_OCCURRENCES = 1000
_MOST_DATA_BYTES = 64 * 1024
_LONGEST_REASON = 1000


async def perform(
    app: Duetime, make: Make, tx: Any = None, *, reads: bool = False, computes: bool = False
) -> Any:
    """Run statements in a transaction of their own, or in the caller's."""
    return await app._perform(
        lambda dialect: make(ReminderStatements(dialect)), tx, reads=reads, computes=computes
    )


class Scopes:
    """`app.scopes`: levels that carry rules, which those inside inherit."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def put(
        self,
        ref: str,
        *,
        parent: str | None = None,
        remind: Any = None,
        locked: bool = False,
        by: str = "unknown",
        tx: Any = None,
    ) -> int:
        """Add or change a scope; return how many open subjects below it were looked at again.

        `remind`: rules such as `["-7d", "-1h"]`; `[]` means none, None inherits the parent's.
        `locked`: levels inside cannot set others.
        """
        if not isinstance(locked, bool):
            raise InvalidInput(f"locked must be True or False, got {locked!r}.")
        scope = ScopeInfo(
            check_name(ref, what="scope"),
            None if parent is None else check_name(parent, what="parent"),
            None if remind is None else parse_rules(remind),
            locked,
        )
        actor = check_name(by, what="actor (by=)")
        count: int = await perform(self._app, lambda s: s.put_scope(scope, actor=actor), tx)
        return count

    async def delete(self, ref: str, *, by: str = "unknown", tx: Any = None) -> bool:
        """Delete a scope with nothing inside it; return whether it was there."""
        actor = check_name(by, what="actor (by=)")
        name = check_sought(ref, what="scope")
        gone: bool = await perform(self._app, lambda s: s.delete_scope(name, actor=actor), tx)
        return gone

    async def all(self) -> list[ScopeInfo]:
        """Return every scope, with what it says itself."""
        scopes: list[ScopeInfo] = await perform(self._app, lambda s: s.scopes(), reads=True)
        return scopes


class Subjects:
    """`app.subjects`: what people are reminded of."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    def define(
        self,
        ref: str,
        *,
        due: datetime | None = _UNSAID,
        repeats: Any = None,
        scope: str | None = None,
        tz: str = "UTC",
        remind: Any = None,
        recipients: Iterable[str] = (),
        data: Mapping[str, Any] | None = None,
    ) -> Subject:
        """Return a subject, checked and not stored: for `put_many`."""
        _check_when(due, repeats)
        to = check_names(recipients, what="recipients", example="recipients=['ann', 'bob']")
        if len(to) > MOST_RECIPIENTS:
            raise InvalidInput(f"A subject has at most {MOST_RECIPIENTS} recipients.")
        return Subject(
            ref=check_name(ref, what="subject"),
            scope=None if scope is None else check_name(scope, what="scope"),
            due_at=None if due in (None, _UNSAID) else check_moment(due, name="due"),
            repeats=None if repeats is None else parse_repeats(repeats, parse_zone(tz).key),
            tz=parse_zone(tz).key,
            status="open",
            rules=None if remind is None else parse_rules(remind),
            data=_plain(data or {}),
            recipients=to,
        )

    async def put(
        self,
        ref: str,
        *,
        due: datetime | None = _UNSAID,
        repeats: Any = None,
        scope: str | None = None,
        tz: str = "UTC",
        remind: Any = None,
        recipients: Iterable[str] = (),
        data: Mapping[str, Any] | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> str:
        """Add a subject or change it, and make its reminders true, in one transaction.

        It is `due` once, or `repeats`: a cron expression, an RRULE, or a mapping with more (see
        `domain/reminders/recurrence.py`). Exceptions of a recurrence stay unless it names others.

        Moved: the old reminders are superseded and new ones armed. A change of `data` alone never
        sends one again. Putting a completed subject opens it again. Returns `added`, `changed` or
        `same`.
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
        self, subjects: Sequence[Subject], *, by: str = "unknown", tx: Any = None
    ) -> dict[str, str]:
        """`put`, for many made by `define`: all or none."""
        for subject in subjects:
            if not isinstance(subject, Subject):
                raise InvalidInput(f"put_many takes what subjects.define returns, got {subject!r}.")
        refs = [subject.ref for subject in subjects]
        if len(set(refs)) < len(refs):
            raise InvalidInput("A subject is given twice; references are unique.")
        actor = check_name(by, what="actor (by=)")
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
        """It is done: what is not sent yet is cancelled. Raises `SubjectNotFound`.

        `occurrence`: only this one of a subject that repeats. `reason`: what its reminders and the
        audit say; of a whole subject only.
        """
        if occurrence is None:
            await self._close(ref, by, tx, reason=reason, delete=False)
        elif reason is not None:
            raise InvalidInput("A reason is told for a whole subject: leave out occurrence=.")
        else:
            await self._change(ref, occurrence, "done", by, tx)

    async def skip(
        self, ref: str, occurrence: datetime, *, by: str = "unknown", tx: Any = None
    ) -> None:
        """Leave out one occurrence of a subject that repeats."""
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
        """Move one occurrence of a subject that repeats: its reminders go with it."""
        await self._change(ref, occurrence, read_moment(to), by, tx)

    async def restore(
        self, ref: str, occurrence: datetime, *, by: str = "unknown", tx: Any = None
    ) -> None:
        """Take back what was done to one occurrence: it is again as the recurrence says."""
        await self._change(ref, occurrence, None, by, tx)

    async def occurrences(
        self, ref: str, n: int = 10, *, since: datetime | None = None
    ) -> list[Occurrence]:
        """Return when a subject that repeats is due next, from `since` or now on."""
        if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= _MOST_OCCURRENCES:
            raise InvalidInput(f"n is 1 to {_MOST_OCCURRENCES}, got {n!r}.")
        subject = await self.get(ref)
        if subject.repeats is None:
            raise InvalidInput(f"The subject {ref!r} does not repeat.")
        start = await self._app.now() if since is None else read_moment(since)
        return await asyncio.to_thread(subject.repeats.first, start, n)

    async def delete(
        self, ref: str, *, reason: str | None = None, by: str = "unknown", tx: Any = None
    ) -> None:
        """Remove it with its reminders; none fires any more. The audit has the `reason`."""
        await self._close(ref, by, tx, reason=reason, delete=True)

    async def get(self, ref: str) -> Subject:
        """Return the subject; raise `SubjectNotFound`."""
        check_sought(ref, what="subject")
        found = await perform(self._app, lambda s: s.subjects([ref]), reads=True)
        if not found:
            raise SubjectNotFound(ref)
        subject: Subject = found[0]
        return subject

    async def find(self, *, scope: str | None = None, status: str | None = None) -> list[Subject]:
        """Return subjects, the next due first; at most 1,000.

        `scope`: that one and all inside it. `status`: `open` or `done`.
        """
        if status not in (None, "open", "done"):
            raise InvalidInput(f"There is no status {status!r}. There are: open, done.")
        if scope is not None:
            check_sought(scope, what="scope")
        found: list[Subject] = await perform(
            self._app, lambda s: s.list_subjects(scope=scope, status=status), reads=True
        )
        return found

    async def rules(self, ref: str) -> tuple[list[str], str | None]:
        """Return the rules that hold for a subject, and the level that they come from."""
        subject = await self.get(ref)
        levels = await perform(self._app, lambda s: s.levels(subject), reads=True)
        resolved = resolve_rules(levels)
        return [rule.text for rule in resolved.rules], resolved.source

    async def export_ical(
        self, refs: Iterable[str] | None = None, *, scope: str | None = None
    ) -> bytes:
        """Return subjects and their reminders as an iCalendar file.

        Those named, or the open ones in a scope and inside it, or all open ones.
        """
        from duetime.integrations.ical.exchange import export_ical

        return await export_ical(self._app, refs, scope=scope)

    async def import_ical(self, data: bytes | str, **options: Any) -> Imported:
        """Put the events of an iCalendar file as subjects; see the guide on recurring subjects."""
        from duetime.integrations.ical.exchange import import_ical

        return await import_ical(self._app, data, **options)

    async def _change(
        self, ref: str, occurrence: datetime, exception: Exception_ | None, by: str, tx: Any
    ) -> None:
        actor = check_name(by, what="actor (by=)")
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
        actor = check_name(by, what="actor (by=)")
        why = None if reason is None else _reason(reason)

        def close(statements: ReminderStatements) -> Statements:
            return statements.close(ref, actor=actor, reason=why, delete=delete)

        if not await perform(self._app, close, tx):
            raise SubjectNotFound(ref)


class Reminders:
    """`app.reminders`: what will be sent, what was, and why not."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def find(
        self, *, subject: str | None = None, status: ReminderStatus | str | None = None
    ) -> list[Reminder]:
        """Return reminders, earliest first; at most 1,000.

        If there are more, of those that are armed the next ones, else the newest.
        """
        if status is not None and status not in set(ReminderStatus):
            raise InvalidInput(
                f"There is no status {status!r}. There are: {', '.join(ReminderStatus)}."
            )
        if subject is not None:
            check_sought(subject, what="subject")
        found: list[Reminder] = await perform(
            self._app, lambda s: s.find(subject=subject, status=status), reads=True
        )
        return found

    async def preview(self, within: Duration = "7d") -> list[Reminder]:
        """Return what is due in the next days, earliest first."""
        until = await self._app.now() + parse_duration(within, name="within")
        found: list[Reminder] = await perform(
            self._app, lambda s: s.find(status="armed", until=until), reads=True
        )
        return found

    async def explain(self, reminder: int | Reminder) -> str:
        """Say what became of a reminder, and why. Raises `ReminderNotFound`."""
        found = await self._get(id_of(reminder))
        deliveries = await find_deliveries(self._app, found.id)
        told = explain_reminder(found, deliveries, now=await self._app.now())
        subject = await self._app.subjects.get(found.subject)
        if subject.problem is not None:
            told = f"{told} Of its row something cannot be used: {subject.problem}."
        repeats = subject.repeats
        if repeats is None:
            return told
        which = f"It is of the occurrence of {say_moment(found.due_at)}"
        return f"{told} {which}; the subject repeats: {repeats.describe()}."

    async def deliveries(self, reminder: int | Reminder) -> list[Delivery]:
        """Return what each channel did with a reminder, in the order in which they were asked.

        Raises `ReminderNotFound`.
        """
        reminder_id = id_of(reminder)
        found = await find_deliveries(self._app, reminder_id)
        if not found:
            await self._get(reminder_id)
        return found

    async def acknowledge(
        self, which: int | Reminder | str, *, by: str = "unknown", tx: Any = None
    ) -> bool:
        """Somebody has seen it: it escalates no more. Returns whether that was new.

        `which`: the reminder or its id, or the id under which its receiver knows it, as text.
        Raises `ReminderNotFound`, `DeliveryNotFound`, and `InvalidInput` if it was not sent.
        """
        known = which if isinstance(which, str) else id_of(which)
        return await acknowledge(self._app, known, by=by, tx=tx)

    async def snooze(
        self, reminder: int | Reminder, span: Duration, *, by: str = "unknown", tx: Any = None
    ) -> datetime:
        """Send it again after a while, unless its subject moves or ends before; return when.

        That is another message, with a key of its own. Until then it does not escalate. Raises
        `ReminderNotFound`, and `InvalidInput` if it was not sent, is no longer true, or would
        then be too late.
        """
        return await snooze(self._app, id_of(reminder), span, by=by, tx=tx)

    async def resend(
        self, reminder: int | Reminder, *, by: str = "unknown", tx: Any = None
    ) -> Reminder:
        """Send one now that has ended: it failed, expired, was skipped, or was sent. Return it.

        Its key stays, so that a receiver who has it after all drops it; if a channel took it, it is
        another message, as after a snooze. Expiry does not hold for it. Raises `ReminderNotFound`,
        and `InvalidInput` if it is armed, or no longer true.
        """
        return await resend(self._app, id_of(reminder), by=by, tx=tx)

    async def resend_many(
        self,
        *,
        status: ReminderStatus | str = ReminderStatus.FAILED,
        subject: str | None = None,
        scope: str | None = None,
        recipient: str | None = None,
        within: Duration | None = None,
        by: str = "unknown",
    ) -> Resent:
        """Send all reminders now that `failed` (or `expired`, or were `skipped`) and match.

        `scope`: in it or inside it. `within`: ended in the last hours or days. Each is sent as
        `resend` does it; returns which are, and which are not, such as those that are no longer
        true. Raises `InvalidInput`.
        """
        actor = check_name(by, what="actor (by=)")
        ids = await find_ended(
            self._app,
            status=status,
            subject=subject,
            scope=scope,
            recipient=recipient,
            within=within,
        )
        return await resend_many(self._app, ids, by=actor)

    async def _get(self, reminder_id: int) -> Reminder:
        found: list[Reminder] = await perform(
            self._app, lambda s: s.find(ids=[reminder_id]), reads=True
        )
        if not found:
            raise ReminderNotFound(reminder_id)
        return found[0]


def _check_when(due: Any, repeats: Any) -> None:
    if repeats is None:
        if due is _UNSAID:
            raise InvalidInput(
                "Say when the subject is due: due=… (None: never), or repeats='0 9 * * 1-5'."
            )
    elif due not in (None, _UNSAID):
        raise InvalidInput(
            "A subject is due once or repeats: give due= or repeats=, not both. The first time of "
            "one that repeats is its start: repeats={'rrule': …, 'start': …}."
        )


def _reason(text: Any) -> str:
    if not isinstance(text, str) or not 1 <= len(text) <= _LONGEST_REASON:
        raise InvalidInput(f"A reason is 1 to {_LONGEST_REASON:,} characters, got {text!r:.60}.")
    return check_text(text, what="the reason")


def _plain(data: Mapping[str, Any]) -> dict[str, Any]:
    try:
        raw = msgspec.json.encode(dict(data))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"A subject's data must be plain JSON: {error}.") from None
    if len(raw) > _MOST_DATA_BYTES or b"\\u0000" in raw:
        raise InvalidInput(
            f"A subject's data has at most {_MOST_DATA_BYTES:,} bytes of JSON and no NUL; "
            f"this has {len(raw):,}. Store a reference."
        )
    check_finite(data, raw, what="A subject's data")
    plain: dict[str, Any] = msgspec.json.decode(raw)
    return plain
