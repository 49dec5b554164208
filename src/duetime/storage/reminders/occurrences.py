"""What is done to single occurrences of subjects that repeat, as statements without I/O."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from duetime.domain.duration import format_time
from duetime.domain.reminders.recurrence import OccurrenceChange, explain_exception
from duetime.domain.reminders.reminder import Subject
from duetime.errors import InvalidInput, SubjectNotFound
from duetime.storage.reminders.reminders import ReminderStatements
from duetime.storage.reminders.rows import rules_that_hold, subject_document, subject_summary
from duetime.storage.store import Statements

MAX_SUBJECTS = 20_000
_ACTIONS = {"skip": "skipped", "done": "completed"}


class OccurrenceStatements(ReminderStatements):
    """Every method is one transaction."""

    def change_occurrence(
        self, ref: str, occurrence: datetime, exception: OccurrenceChange | None, *, actor: str
    ) -> Statements:
        """Skip, complete or move an occurrence; None: it is as the recurrence says. Re-arms."""
        yield from self._queue_for_scope(ref)
        for subject in (yield from self._lock(refs=[ref])):
            if subject.repeats is None:
                raise InvalidInput(
                    f"The subject {ref!r} does not repeat, so it has no occurrences. "
                    "Complete the whole subject, or put it with another due time."
                )
            if subject.status != "open":
                raise InvalidInput(f"The subject {ref!r} is done. Put it again to open it.")
            yield from self._catch_up([subject])
            before = subject_summary(subject)
            now = yield from self._dialect.now()
            original = subject.repeats.find(occurrence)
            if exception == original:
                exception = None
            changed = subject.repeats.changed(original, exception, now)
            if (subject.repeats.exceptions or {}).get(original) == exception:
                return
            subject.repeats = changed
            subject.revision += 1
            yield from self._dialect.run(
                "subject_update",
                [subject_document(subject) | {"id": subject.id, "revision": subject.revision}],
            )
            why = None if exception is None else explain_exception(exception)
            yield from self._rearm([subject], why)
            done = "moved" if isinstance(exception, datetime) else _ACTIONS.get(str(exception))
            yield from self._audit(
                actor,
                f"occurrence.{done or 'restored'}",
                f"subject:{ref}",
                before | {"occurrence": format_time(original)},
                subject_summary(subject),
            )
            return
        raise SubjectNotFound(ref)

    def with_rules(self, refs: Sequence[str] | None, scope: str | None) -> Statements:
        """Return subjects, each with the rules that hold: those named, or the open ones of a scope
        and of all inside it, or all open ones. Reads only."""
        scopes = {one.ref: one for one in (yield from self.scopes())}
        if scope is not None and scope not in scopes:
            raise InvalidInput(f"There is no scope {scope!r}.")
        found: list[Subject] = []
        while len(found) <= MAX_SUBJECTS:
            rows = yield from self._dialect.run(
                "subject_page",
                {"refs": refs, "scope": scope, "after": found[-1].id if found else 0},
            )
            if not rows:
                return [(subject, rules_that_hold(subject, scopes)) for subject in found]
            found += [self._subject(row) for row in rows]
        raise InvalidInput(f"There are more than {MAX_SUBJECTS:,} subjects. Choose a scope.")

    def _queue_for_scope(self, ref: str) -> Statements:
        """Scopes are locked before subjects, as everyone does."""
        for subject in (yield from self.subjects([ref])):
            if subject.scope is not None:
                yield from self._check_scopes([subject])
