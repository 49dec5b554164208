"""`app.scopes`, `app.subjects`, `app.reminders`: reminders that follow your data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec

from duetime import transaction
from duetime.domain.arming import resolve_rules
from duetime.domain.cron import parse_zone
from duetime.domain.duration import Duration, parse_duration
from duetime.domain.job import check_moment, check_name
from duetime.domain.reminder import Reminder, ReminderStatus, Subject, explain_reminder
from duetime.domain.rule_text import parse_rules
from duetime.errors import InvalidInput, SubjectNotFound
from duetime.storage.reminders import ReminderStatements, ScopeInfo
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime

Make = Callable[[ReminderStatements], Statements]

_MOST_RECIPIENTS = 1000
_MOST_DATA_BYTES = 64 * 1024


async def perform(app: Duetime, make: Make, tx: Any = None, *, reads: bool = False) -> Any:
    """Run statements in a transaction of their own, or in the caller's."""
    if tx is None:
        store = await app.store()
        return await store.transact(make(ReminderStatements(store.dialect)), reads=reads)
    store = app._unopened()
    statements = make(ReminderStatements(store.dialect))
    return await transaction.run_async(tx, statements, placeholder=store.capabilities.placeholder)


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
        scope = ScopeInfo(
            check_name(ref, what="scope"),
            None if parent is None else check_name(parent, what="parent"),
            None if remind is None else parse_rules(remind),
            locked,
        )
        actor = check_name(by, what="actor (by=)")
        count: int = await perform(self._app, lambda s: s.put_scope(scope, actor=actor), tx)
        return count

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
        due: datetime | None,
        scope: str | None = None,
        tz: str = "UTC",
        remind: Any = None,
        recipients: Iterable[str] = (),
        data: Mapping[str, Any] | None = None,
    ) -> Subject:
        """Return a subject, checked and not stored: for `put_many`."""
        to = tuple(dict.fromkeys(check_name(one, what="recipient") for one in recipients))
        if len(to) > _MOST_RECIPIENTS:
            raise InvalidInput(f"A subject has at most {_MOST_RECIPIENTS} recipients.")
        return Subject(
            ref=check_name(ref, what="subject"),
            scope=None if scope is None else check_name(scope, what="scope"),
            due_at=None if due is None else check_moment(due, name="due"),
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
        due: datetime | None,
        scope: str | None = None,
        tz: str = "UTC",
        remind: Any = None,
        recipients: Iterable[str] = (),
        data: Mapping[str, Any] | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> str:
        """Add a subject or change it, and make its reminders true, in one transaction.

        Moved: the old reminders are superseded and new ones armed. A change of `data` alone never
        sends one again. Putting a completed subject opens it again. Returns `added`, `changed` or
        `same`.
        """
        subject = self.define(
            ref, due=due, scope=scope, tz=tz, remind=remind, recipients=recipients, data=data
        )
        return (await self.put_many([subject], by=by, tx=tx))[ref]

    async def put_many(
        self, subjects: Sequence[Subject], *, by: str = "unknown", tx: Any = None
    ) -> dict[str, str]:
        """`put`, for many made by `define`: all or none."""
        refs = [subject.ref for subject in subjects]
        if len(set(refs)) < len(refs):
            raise InvalidInput("A subject is given twice; references are unique.")
        actor = check_name(by, what="actor (by=)")
        answer: dict[str, str] = await perform(
            self._app, lambda s: s.put(subjects, actor=actor), tx
        )
        return answer

    async def complete(self, ref: str, *, by: str = "unknown", tx: Any = None) -> None:
        """It is done: what is not sent yet is cancelled. Raises `SubjectNotFound`."""
        await self._close(ref, by, tx, delete=False)

    async def delete(self, ref: str, *, by: str = "unknown", tx: Any = None) -> None:
        """Remove it with its reminders; none fires any more."""
        await self._close(ref, by, tx, delete=True)

    async def get(self, ref: str) -> Subject:
        """Return the subject; raise `SubjectNotFound`."""
        found = await perform(self._app, lambda s: s.subjects([ref]), reads=True)
        if not found:
            raise SubjectNotFound(ref)
        subject: Subject = found[0]
        return subject

    async def rules(self, ref: str) -> tuple[list[str], str | None]:
        """Return the rules that hold for a subject, and the level that they come from."""
        subject = await self.get(ref)
        levels = await perform(self._app, lambda s: s.levels(subject), reads=True)
        resolved = resolve_rules(levels)
        return [rule.text for rule in resolved.rules], resolved.source

    async def _close(self, ref: str, by: str, tx: Any, *, delete: bool) -> None:
        actor = check_name(by, what="actor (by=)")
        if not await perform(self._app, lambda s: s.close(ref, actor=actor, delete=delete), tx):
            raise SubjectNotFound(ref)


class Reminders:
    """`app.reminders`: what will be sent, what was, and why not."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def find(
        self, *, subject: str | None = None, status: ReminderStatus | str | None = None
    ) -> list[Reminder]:
        """Return reminders, earliest first; at most 1,000."""
        if status is not None and status not in set(ReminderStatus):
            raise InvalidInput(
                f"There is no status {status!r}. There are: {', '.join(ReminderStatus)}."
            )
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

    async def explain(self, reminder_id: int) -> str:
        """Say in one sentence what became of a reminder, and why."""
        found = await perform(self._app, lambda s: s.find(ids=[reminder_id]), reads=True)
        if not found:
            raise InvalidInput(f"There is no reminder {reminder_id}: its subject may be deleted.")
        return explain_reminder(found[0], now=await self._app.now())

    async def receipt(self, external_id: str, status: str, *, tx: Any = None) -> int:
        """Record what a provider told later (`delivered`, `bounced`, …); return of how many."""
        check_name(status, what="status")
        count: int = await perform(self._app, lambda s: s.receipt(external_id, status), tx)
        return count


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
    plain: dict[str, Any] = msgspec.json.decode(raw)
    return plain
