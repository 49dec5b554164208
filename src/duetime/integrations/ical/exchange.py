"""`app.subjects.export_ical` and `import_ical`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.api.subjects import perform
from duetime.domain.checks import check_name, check_names
from duetime.domain.reminders.reminder import Subject
from duetime.domain.reminders.rule_text import RulesLike, parse_rules
from duetime.domain.schedules.cron import parse_zone
from duetime.errors import InvalidInput, SubjectNotFound
from duetime.integrations.ical.reading import OWN_DATA, Event, Problem, read_events
from duetime.integrations.ical.writing import Entry, write_calendar
from duetime.storage.reminders.occurrences import OccurrenceStatements
from duetime.storage.store import Statements, in_parts

if TYPE_CHECKING:
    from duetime.app import Duetime

_BATCH = 500


class Imported(msgspec.Struct, frozen=True):
    """What an import did: `{ref: "added" | "changed" | "same"}`, and the events left out."""

    results: dict[str, str]
    problems: list[Problem]

    def count(self, result: str) -> int:
        return sum(one == result for one in self.results.values())


async def export_ical(
    app: Duetime, refs: Iterable[str] | None = None, *, scope: str | None = None
) -> bytes:
    """Return subjects as a file: those named, those in a scope and inside it, or all open ones."""
    named = None
    if refs is not None:
        named = list(check_names(refs, what="subjects", example="['game:1', 'game:2']"))
    if named is not None and scope is not None:
        raise InvalidInput(
            "refs and scope cannot be combined. Export either the named subjects or those of a "
            "scope."
        )

    def ask(statements: Any) -> Statements:
        return OccurrenceStatements(statements.dialect).with_rules(named, scope)

    found = await perform(app, ask, snapshot=True)
    for ref in named or ():
        if ref not in {subject.ref for subject, _ in found}:
            raise SubjectNotFound(ref)
    entries = [Entry(*one) for one in found]
    # Off the loop: a large file takes seconds.
    return await asyncio.to_thread(write_calendar, entries, await app.now())


async def import_ical(
    app: Duetime,
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
    """Put the events of a file as subjects, 500 in a transaction; with `tx`, all in yours.

    An event's UID is its reference. What a file does not say (scope, recipients, other data) stays
    as it is, unless it is given here. `remind` takes the place of the events' alarms; `tz` is the
    zone of times that name none. `dry_run` only says what would change.
    """
    # A wrong argument is reported once, before anything is stored.
    if tz is not None:
        parse_zone(tz)
    if remind is not None:
        remind = list(parse_rules(remind))
    if scope is not None:
        check_name(scope, what="scope")
    events, problems = await asyncio.to_thread(read_events, data, tz=tz)
    to = None
    if recipients is not None:
        to = check_names(recipients, what="recipients", example="recipients=['ann', 'bob']")
    results: dict[str, str] = {}

    def define(events: Sequence[Event], stored: Mapping[str, Subject]) -> list[Subject]:
        put: list[Subject] = []
        for event in events:
            known = stored.get(event.ref)
            try:
                given = _subject(app, event, known, scope, remind, to)
            except InvalidInput as error:
                problems.append(Problem(event.ref, str(error)))
                continue
            results[event.ref] = _outcome(given, known, event)
            if results[event.ref] != "same":
                put.append(given)
        return put

    for batch in in_parts(events, _BATCH):
        stored = await _stored(app, [event.ref for event in batch], tx)
        put = await asyncio.to_thread(define, batch, stored)
        if put and not dry_run:
            results.update(await app.subjects.put_many(put, by=by, tx=tx))
    return Imported(results, problems)


def _subject(
    app: Duetime,
    event: Event,
    known: Subject | None,
    scope: str | None,
    remind: Any,
    recipients: Sequence[str] | None,
) -> Subject:
    data = event.data
    if known is not None:
        scope = known.scope if scope is None else scope
        recipients = known.recipients if recipients is None else recipients
        data = {name: one for name, one in known.data.items() if name not in OWN_DATA} | data
    subject = app.subjects.define(
        event.ref,
        due=event.due,
        repeats=event.repeats,
        scope=scope,
        tz=event.tz,
        remind=event.rules if remind is None else remind,
        recipients=recipients or (),
        data=data,
    )
    if event.cancelled:
        subject.status = "done"
    return subject


def _outcome(given: Subject, known: Subject | None, event: Event) -> str:
    """What putting it would do. What is done stays so, unless the file has moved it."""
    if known is None:
        return "same" if event.cancelled else "added"
    if given.repeats is not None:
        given.repeats = given.repeats.keeping(known.repeats)
    if known.status == "done" and not event.cancelled:
        as_done = msgspec.structs.replace(given, status="done")
        if as_done.material() == known.material():
            given.status = "done"
    unchanged = given.material() == known.material() and given.data == known.data
    return "same" if unchanged else "changed"


async def _stored(app: Duetime, refs: Sequence[str], tx: Any) -> dict[str, Subject]:
    found = await perform(app, lambda s: s.subjects(refs), tx, reads=tx is None)
    return {subject.ref: subject for subject in found}
