"""How reminders are let through to their recipients, or held, alone or in a digest.

Statements without I/O. Whoever lets a message through to a limited recipient holds the recipient's
row: the count of the last hour is exact, whatever the number of workers. Nothing is held while a
message is sent.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from duetime.domain.duration import format_time
from duetime.domain.jobs.job import AttemptOutcome
from duetime.domain.jobs.outcome import Outcome, Skip, Snooze
from duetime.domain.reasons import Reason, read_reason
from duetime.domain.reminders.admission import (
    HOUR,
    RELEASED,
    Send,
    Uses,
    Wait,
    decide,
    digest_time,
    gather,
)
from duetime.domain.reminders.digest import DIGEST_TASK
from duetime.domain.reminders.recipient import Recipient
from duetime.domain.reminders.reminder import Reminder, ReminderStatus
from duetime.domain.reminders.rule import Rule
from duetime.errors import InvalidInput, ReminderNotFound
from duetime.storage.reminders.recipients import RecipientStatements, read_recipient
from duetime.storage.store import Dialect, Row, Statement, Statements

_AFTER_DIGEST = timedelta(seconds=10)
"""How long after a digest its reminders check whether it was sent."""
_SOON = timedelta(seconds=1)
GONE = Skip(Reason("just_ended"))


class HeldJob(NamedTuple):
    """The job of a reminder, as its worker holds it; times in microseconds since its claim."""

    job: int
    token: int
    started: int
    finished: int


class Waits(Snooze):
    """The job waits already: that is recorded."""


class AdmissionState(NamedTuple):
    """What is known when a reminder is due. No recipient: it was never put."""

    now: datetime
    recipient: Recipient | None
    status: str
    """Of the reminder: it may have gone out with a digest just now, or been withdrawn."""
    held: str | None
    digest: int | None
    digest_status: str | None
    rule: Rule | None
    """Where it may have changed since the reminder was read."""


class AdmissionRequest(NamedTuple):
    """A reminder that is to be let through."""

    reminder: Reminder
    around: set[str]
    """The scopes that it is in, all levels."""
    channels: Sequence[str] | None
    """Those that the app has; None: a handler sends."""
    digests: bool
    """What waits goes out together."""
    job: HeldJob


class Hour:
    """What a recipient got in the last hour, and what is let through now."""

    def __init__(
        self, now: datetime, taken: int, frees_at: datetime | None, admitted: set[str]
    ) -> None:
        self.now = now
        self._taken = taken
        self._frees_at = frees_at
        self._admitted = admitted

    def beside(self, what: str) -> Uses:
        """All but this message."""
        admitted = what in self._admitted
        return Uses(self._taken - admitted, self._frees_at, admitted)

    def count(self, what: str) -> None:
        """One more is let through."""
        if what not in self._admitted:
            self._admitted.add(what)
            self._taken += 1
            self._frees_at = self._frees_at or self.now + HOUR


class AdmissionStatements(RecipientStatements):
    """Every method is one transaction."""

    def admissions(self, reminder_ids: Sequence[int]) -> Statements:
        """Return what is known about the recipients of reminders, by reminder id. Reads only."""
        rows = yield from self._dialect.run("admission_read", list(reminder_ids))
        return {row[12]: read_admission_state(self._dialect, row) for row in rows}

    def around(self, scopes: Sequence[str]) -> Statements:
        """Return `{scope: {itself and all around it}}`. Reads only, in one statement."""
        rows = yield from self._dialect.run("scope_around", list(scopes))
        found: dict[str, set[str]] = {}
        for scope, outer in rows:
            found.setdefault(scope, set()).add(outer)
        return found

    def release(self, reminder: Reminder, reason: Reason | None, now: datetime) -> Statements:
        """It goes out now; `reason`: what people should know. Returns whether it still may."""
        release = _as_release(reminder, reason, now)
        return bool((yield from self._hold_all({reminder.id: release})))

    def send_anyway(self, reminder_id: int, *, actor: str) -> Statements:
        """Let one out that waits for quiet hours, for the limit or in a digest; return it."""
        for reminder in (yield from self.find([reminder_id])):
            yield from self.lock_recipient(reminder.recipient)
        # Again, now that no digest can close with it.
        found = yield from self.find([reminder_id])
        if not found:
            raise ReminderNotFound(reminder_id)
        [reminder] = found
        state = (yield from self.admissions([reminder_id]))[reminder_id]
        _check_waits(reminder, state)
        if state.held == RELEASED:
            return reminder
        if state.digest is not None and not (yield from self._dialect.run(
            "digest_stay_open", {"id": state.digest}
        )):  # fmt: skip
            raise _goes_out_in(reminder, state)
        now = yield from self._dialect.now()
        reason = Reason.of("let_out", by=actor, why=reminder.reason)
        hold = {"run_at": now, "reason": reason, "held": RELEASED}
        yield from self._hold_all({reminder_id: hold})
        if not (yield from self._dialect.run(
            "digest_move", {"job": reminder.job_id, "run_at": now}
        )):  # fmt: skip
            # In the caller's transaction, nobody else would undo it.
            as_before = {"run_at": reminder.run_at, "reason": reminder.reason}
            as_before |= {"held": state.held, "digest": state.digest}
            yield from self._hold_all({reminder_id: as_before})
            raise InvalidInput(
                f"Reminder {reminder_id} is being processed at this moment. Try again in a second."
            )
        what = {"reminder": reminder_id, "rule": reminder.rule.text}
        what |= {"recipient": reminder.recipient}
        before = {"run_at": reminder.run_at, "why": reminder.reason}
        yield from self._audit(
            actor, "reminder.sent_anyway", f"subject:{reminder.subject}", before, what
        )
        return (yield from self.find([reminder_id]))[0]

    def give_back(self, reminder: Reminder) -> Statements:
        """It was let through, and surely not sent."""
        yield from self._dialect.run(
            "use_delete", {"ref": reminder.recipient, "what": use_of(reminder)}
        )

    # Under the lock of the recipient

    def admit_again(self, request: AdmissionRequest) -> Statements:
        """As `admit`, for one whose first request may have been committed although it failed: then
        its job waits, and must not send it as well."""
        job, token = request.job.job, request.job.token
        rows = yield from self._dialect.run("admission_ended", {"job": job, "token": token})
        if rows:
            [(outcome, reason)] = rows
            # If it ended otherwise, the job was lost: its finish is refused.
            waits = outcome == AttemptOutcome.SNOOZED
            return Waits(timedelta(0), read_reason(reason)) if waits else GONE
        return (yield from self.admit([request]))[0]

    def admit(self, requests: Sequence[AdmissionRequest]) -> Statements:
        """Let reminders of one recipient through and count them, or hold them.

        Returns for each `Send`, or the `Outcome` of its job; or None: another transaction changes
        it just now, so it has to be requested alone. The jobs of those that are held wait when this
        commits: a change of what they wait for comes before, or finds them.
        """
        ref = requests[0].reminder.recipient
        recipient = (yield from self.lock_recipient(ref)) or Recipient(ref=ref)
        # Who holds several and waits for none of them cannot deadlock.
        is_alone = len(requests) == 1
        lock = "reminder_hold" if is_alone else "reminder_free"
        ids = [request.reminder.id for request in requests]
        ids = [row[0] for row in (yield from self._dialect.run(lock, ids))]
        if is_alone and not ids:
            # It was deleted with its subject.
            return [GONE]
        admissions = yield from self.admissions(ids)
        free = [request for request in requests if request.reminder.id in set(ids)]
        hour = yield from self._hour(recipient, [use_of(request.reminder) for request in free])
        rows = yield from self._dialect.run("digest_open", {"ref": ref})
        # Reminders that wait go first, else new ones could keep a digest waiting for ever.
        others_wait = bool(rows) and not rows[0][3]
        answers: dict[int, Send | Outcome] = {}
        holds: dict[int, dict[str, Any]] = {}
        joining: list[tuple[Reminder, Uses]] = []
        for request in free:
            reminder = request.reminder
            if (gone := _outcome_since(reminder, admissions.get(reminder.id))) is not None:
                answers[reminder.id] = gone
                continue
            uses = hour.beside(use_of(reminder))
            decision = decide(
                recipient, reminder, hour.now,
                around=request.around, channels=request.channels, uses=uses,
            )  # fmt: skip
            newcomer = isinstance(decision, Send) and not uses.admitted
            full = isinstance(decision, Wait) and decision.held != "quiet"
            if request.digests and (full or (newcomer and (others_wait or joining))):
                joining.append((reminder, uses))
            elif isinstance(decision, Send):
                answers[reminder.id] = decision
                holds[reminder.id] = _as_release(reminder, decision.reason, hour.now)
                hour.count(use_of(reminder))
            elif isinstance(decision, Wait):
                answers[reminder.id] = Snooze(decision.until - hour.now, decision.reason)
                holds[reminder.id] = _as_hold(decision)
            else:
                answers[reminder.id] = decision
        if joining:
            hold, waits = yield from self._join(recipient, joining, hour.now)
            for reminder, _ in joining:
                answers[reminder.id], holds[reminder.id] = waits, hold
        yield from self._let_through(recipient, free, answers, holds)
        jobs = {request.reminder.id: request.job for request in free}
        yield from self._wait(jobs, answers)
        return [answers.get(request.reminder.id) for request in requests]

    def _wait(self, jobs: Mapping[int, HeldJob], answers: dict[int, Any]) -> Statements:
        """Have jobs wait, by the ids of their reminders. One that was lost or cancelled is left to
        its worker."""
        snoozed = {
            reminder_id: answer
            for reminder_id, answer in answers.items()
            if isinstance(answer, Snooze)
        }
        if not snoozed:
            return
        given = [
            jobs[reminder_id]._asdict()
            | {"after": snooze.after // timedelta(microseconds=1), "reason": snooze.reason}
            for reminder_id, snooze in snoozed.items()
        ]
        waiting = {row[0] for row in (yield from self._dialect.run("admission_wait", given))}
        for reminder_id, snooze in snoozed.items():
            if jobs[reminder_id].job in waiting:
                answers[reminder_id] = Waits(snooze.after, snooze.reason)

    def _let_through(
        self,
        recipient: Recipient,
        requests: Sequence[AdmissionRequest],
        answers: dict[int, Send | Outcome],
        holds: Mapping[int, dict[str, Any]],
    ) -> Statements:
        """Record what was decided; what was withdrawn meanwhile is not sent."""
        armed = yield from self._hold_all(holds)
        whats: list[str] = []
        for request in requests:
            if not isinstance(answers.get(request.reminder.id), Send):
                continue
            if request.reminder.id in armed:
                whats.append(use_of(request.reminder))
            else:
                answers[request.reminder.id] = GONE
        if whats:
            given = {"ref": recipient.ref, "whats": sorted(set(whats))}
            yield from self._dialect.run("use_write", given)

    def stay(self, reminder: Reminder, job: HeldJob) -> Statements:
        """It is in a digest that was not sent yet: wait for it. Returns the `Outcome` of its job;
        or None: it is urgent now, has left the digest, and is sent alone."""
        answers = {reminder.id: (yield from self._stay(reminder))}
        yield from self._wait({reminder.id: job}, answers)
        return answers[reminder.id]

    def _stay(self, reminder: Reminder) -> Generator[Statement, list[Row], Outcome | None]:
        recipient = yield from self.lock_recipient(reminder.recipient)
        admission = (yield from self.admissions([reminder.id])).get(reminder.id)
        if admission is None or admission.status != ReminderStatus.ARMED:
            return GONE
        if admission.digest is None:
            return Snooze(timedelta(0), Reason("digest_gone"))
        if reminder.rule.urgent and (yield from self._dialect.run(
            "digest_stay_open", {"id": admission.digest}
        )):  # fmt: skip
            release = _as_release(reminder, None, admission.now)
            return None if (yield from self._hold_all({reminder.id: release})) else GONE
        if admission.digest_status == "waiting":
            recipient = recipient or Recipient(ref=reminder.recipient)
            what = use_of_digest(admission.digest)
            hour = yield from self._hour(recipient, [what])
            joining = [(reminder, hour.beside(what))]
            hold, waits = yield from self._join(recipient, joining, hour.now)
            if not (yield from self._hold_all({reminder.id: hold})):
                return GONE
            # Who changed its rule until now did not find its job; who does from now on will.
            admission = (yield from self.admissions([reminder.id]))[reminder.id]
            changed = admission.rule != reminder.rule
            return Snooze(timedelta(0), Reason("subject_changed")) if changed else waits
        # Should it fail for good, its failure is recorded with this one's.
        return Snooze(_AFTER_DIGEST, Reason.of("digest_sending", digest=admission.digest))

    def _join(
        self, recipient: Recipient, joining: Sequence[tuple[Reminder, Uses]], now: datetime
    ) -> Generator[Statement, list[Row], tuple[dict[str, Any], Outcome]]:
        """Have the recipient's digest go out in time for reminders; return how they are held in
        it, and what their jobs end with."""
        at = min(
            gather(digest_time(recipient, [reminder], now, uses), reminder, now)
            for reminder, uses in joining
        )
        rows = yield from self._dialect.run("digest_open", {"ref": recipient.ref})
        moment = self._dialect.moment
        if rows and rows[0][3]:
            # Its job was cancelled: its reminders join the next digest.
            yield from self._dialect.run("digest_delete", {"id": rows[0][0]})
            rows = []
        in_time = True
        if not rows:
            installation = yield from self._dialect.installation()
            given = {"ref": recipient.ref, "run_at": at, "task": DIGEST_TASK}
            given |= {"installation": installation}
            rows = yield from self._dialect.run("digest_add", given)
        elif rows[0][2] is None or moment(rows[0][2]) > at:
            moved = yield from self._dialect.run("digest_move", {"job": rows[0][1], "run_at": at})
            in_time = bool(moved)
        else:
            at = moment(rows[0][2])
        most = recipient.max_per_hour
        limit = {} if most is None else {"recipient": recipient.ref, "limit": most}
        reason = Reason.of("in_digest", digest=rows[0][0], **limit)
        hold = {"run_at": at, "reason": reason, "held": "limit", "digest": rows[0][0]}
        if not in_time:
            # The digest's job decides just now: it may not have seen this one, so check again.
            return hold, Snooze(_SOON, reason)
        # A digest may be overdue: workers were down, or other jobs come first.
        return hold, Snooze(max(at - now, timedelta(0)) + _AFTER_DIGEST, reason)

    def _hour(
        self, recipient: Recipient, whats: Sequence[str]
    ) -> Generator[Statement, list[Row], Hour]:
        """What the recipient got in the last hour; `whats`: which of these."""
        which = {"ref": recipient.ref, "whats": list(whats), "most": recipient.max_per_hour or 1}
        [(now, taken, oldest, among)] = yield from self._dialect.run("use_read", which)
        moment = self._dialect.moment
        frees_at = None if oldest is None else moment(oldest) + HOUR
        return Hour(moment(now), taken, frees_at, set(msgspec.json.decode(among)))

    def _hold_all(
        self, holds: Mapping[int, dict[str, Any]]
    ) -> Generator[Statement, list[Row], set[int]]:
        """Returns which of the reminders are still to be sent."""
        if not holds:
            return set()
        nothing = dict.fromkeys(("run_at", "reason", "held", "digest"))
        given = [nothing | hold | {"id": reminder_id} for reminder_id, hold in holds.items()]
        return {row[0] for row in (yield from self._dialect.run("admission_hold", given))}


def read_admission_state(dialect: Dialect, row: Row) -> AdmissionState:
    """From the columns of `admission_read`."""
    recipient = None if row[1] is None else read_recipient(row[1:8])
    status, held, digest, digest_status = row[8:12]
    now = dialect.moment(row[0])
    # What a sender reads has the rule with the reminder.
    rule = Rule.from_json(row[13]) if len(row) > 13 else None
    return AdmissionState(now, recipient, status, held, digest, digest_status, rule)


def _outcome_since(reminder: Reminder, admission: AdmissionState | None) -> Outcome | None:
    """What became of a reminder since its job requested it, if it is not to be admitted."""
    if admission is None or admission.status != ReminderStatus.ARMED:
        return GONE
    if admission.digest is not None:
        # Another worker, which got the job after us, has put it there.
        return Snooze(timedelta(0), Reason.of("in_digest", digest=admission.digest))
    if admission.rule != reminder.rule:
        return Snooze(timedelta(0), Reason("subject_changed"))
    return None


def _check_waits(reminder: Reminder, state: AdmissionState) -> None:
    """Raise unless a person can let it out: it is not sent before its time, nor twice."""
    if reminder.status is not ReminderStatus.ARMED:
        withdrawn = (ReminderStatus.SUPERSEDED, ReminderStatus.CANCELLED)
        again = f" To send it again, use `duetime reminders resend {reminder.id}`."
        raise InvalidInput(
            f"Reminder {reminder.id} is {reminder.status}: it does not wait."
            f"{'' if reminder.status in withdrawn else again}"
        )
    if state.digest is not None and state.digest_status != "waiting":
        raise _goes_out_in(reminder, state)
    if state.held is None:
        at = "now" if reminder.run_at is None else f"at {format_time(reminder.run_at)}"
        raise InvalidInput(
            f"Nothing holds reminder {reminder.id} back: it goes out {at}, which is its time."
        )


def _goes_out_in(reminder: Reminder, state: AdmissionState) -> InvalidInput:
    return InvalidInput(f"Reminder {reminder.id} is going out in digest {state.digest} now.")


def _as_hold(wait: Wait) -> dict[str, Any]:
    return {"run_at": wait.until, "reason": wait.reason, "held": wait.held}


def _as_release(reminder: Reminder, reason: Reason | None, now: datetime) -> dict[str, Any]:
    release: dict[str, Any] = {"reason": reason or _reason_after_wait(reminder, now)}
    return release | {"run_at": now} if _ends_early(reminder, now) else release


_WAITED = {
    "quiet_hours": "waited_quiet_hours",
    "hourly_limit": "waited_hourly_limit",
    "in_digest": "waited_in_digest",
}
_TIMED = ("quiet_hours", "hourly_limit")
"""Reasons that say until when it waits."""


def _reason_after_wait(reminder: Reminder, now: datetime) -> Reason | None:
    """The reason of one that waited, and goes out now."""
    waited = reminder.reason
    if waited is None or waited.code not in _WAITED:
        return None
    if reminder.rule.urgent and _ends_early(reminder, now):
        return Reason.of("became_urgent", why=waited)
    if waited.code not in _TIMED or not _ends_early(reminder, now):
        return Reason(_WAITED[waited.code], waited.facts)
    return Reason.of("settings_changed", recipient=reminder.recipient, why=waited)


def _ends_early(reminder: Reminder, now: datetime) -> bool:
    return reminder.run_at is not None and reminder.run_at > now


def use_of(reminder: Reminder) -> str:
    """What takes a place in the hour: a message, however often it is tried. Snoozed or sent again,
    a reminder is another message."""
    again = f"|{reminder.snoozes}" if reminder.snoozes else ""
    return f"reminder:{reminder.id}{again}"


def use_of_digest(digest_id: int) -> str:
    """A digest takes one place, however much is in it."""
    return f"digest:{digest_id}"
