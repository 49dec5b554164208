"""How a due reminder goes out: checked again, admitted to its recipient, sent, and recorded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.channels.channel import Message, Sent
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.outcome import Outcome, Skip, Snooze
from duetime.domain.keys import DIGEST_PREFIX
from duetime.domain.reasons import Reason
from duetime.domain.reminders.admission import RELEASED, Send, Wait, decide, routes_of
from duetime.domain.reminders.recipient import Recipient, Route
from duetime.domain.reminders.reminder import Reminder, ReminderStatus
from duetime.engine.batching import Batcher
from duetime.engine.context import Context
from duetime.reminders.digests import send_digest
from duetime.reminders.messages import Messages
from duetime.reminders.recorder import Record, Recorder
from duetime.reminders.send_attempt import ConfiguredChannel, Outgoing, SendAttempt, SendHandler
from duetime.storage.reminders.admissions import (
    GONE,
    AdmissionRequest,
    AdmissionStatements,
    HeldJob,
    Waits,
)
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.reminders.rearm import RearmStatements
from duetime.storage.reminders.sends import Ready, SendStatements, SentReminder

if TYPE_CHECKING:
    from duetime.api.tasks import Task
    from duetime.app import Duetime

_TWIN_AGAIN = "250ms"


class Sender:
    """The task that every reminder runs as, and what it sends through."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self.channels: dict[str, ConfiguredChannel] = {}
        self.handler: SendHandler | None = None
        self.digest_handler: SendHandler | None = None
        self.messages = Messages(app._registrations)
        self.options: dict[str, Any] = {}
        self.escalation: Task[..., Any] | None = None
        # A read begins after the request for it, so after the job was claimed.
        self._ready: Batcher[int, Ready | None] = Batcher(self._read_ready)
        self._locked: Batcher[AdmissionRequest, Send | Outcome | None] = Batcher(
            self._admit_together
        )
        self._recorder = Recorder(app)

    async def remind(self, reminder: int, ctx: Context) -> Any:
        """The task that every reminder runs as."""
        ready = await self._ready.submit(reminder)
        refused = await self._refuse(ready, ctx.id)
        if ready is None or refused is not None:
            return refused
        if ctx.job.expires_at is None:
            lasting = msgspec.structs.replace(ready.reminder, never_expires=True)
            ready = ready._replace(reminder=lasting)
        admitted = await self._admit(ready, ctx)
        if isinstance(admitted, Outcome):
            ctx.suspended = isinstance(admitted, Waits)
            return admitted
        current, way = admitted
        ready = ready._replace(reminder=current)
        ctx.known_as = current.key
        attempt = SendAttempt(self._app, self._outgoing(ready, ctx), ctx)
        try:
            outcome = await self._send(attempt, current, ctx, way.routes)
        except Exception:
            if not ctx.committed:
                withdrawn = await self._record_attempt(attempt, current)
                if withdrawn is not None:
                    return withdrawn
            raise
        finally:
            ctx.finish_with = None
        if isinstance(outcome, Sent):
            await self._recorder.record(self._record(attempt, current, ctx))
        elif ctx.committed:
            # The handler sent it in a transaction of its own, which has recorded it.
            return outcome
        else:
            if isinstance(outcome, Skip):
                await self._give_back(current)
            outcome = await self._record_attempt(attempt, current) or outcome
        await attempt.disable_addresses(current.recipient)
        return outcome if isinstance(outcome, Outcome) else None

    async def escalate(self, reminder: int, snoozes: int, ctx: Context) -> None:
        """The task that arms the next recipient's reminder, if nobody acknowledged in time."""
        async with ctx.transaction() as connection:
            await self._app._perform(
                lambda d: DeliveryStatements(d).escalate(reminder, snoozes, worker=ctx.worker),
                connection,
            )

    async def digest(self, digest: int, ctx: Context) -> Any:
        """The task that sends what had to wait for one recipient."""
        return await send_digest(self._app, self, digest, ctx)

    async def _read_ready(self, reminders: list[int]) -> Sequence[Ready | None]:
        found = await self._app._perform(lambda d: SendStatements(d).ready(reminders), reads=True)
        return [found.get(reminder) for reminder in reminders]

    async def _refuse(self, ready: Ready | None, job_id: int) -> Outcome | None:
        """Why a reminder whose job runs is not to be sent, or not yet."""
        if ready is None:
            return Skip(Reason("subject_deleted"))
        current = ready.reminder
        if current.status is not ReminderStatus.ARMED:
            return Skip(_ended(current))
        if current.job_id != job_id:
            # Someone enqueued it by hand, or it is what is left of an earlier round.
            return Skip(Reason.of("other_job", job=current.job_id))
        if current.stale:
            subject = current.subject
            await self._app._perform(lambda d: RearmStatements(d).rearm_outdated([subject]))
            return Snooze("50ms", Reason("subject_changed"))
        if ready.twin is None or current.snoozes:
            return None
        # Its subject was closed and opened again as it was, or moved away and back.
        state, other = ready.twin
        if state == "sending":
            return Snooze(_TWIN_AGAIN, Reason.of("other_sending", reminder=other))
        reason = Reason.of("sent_as_other", reminder=other)
        await self._app._perform(lambda d: SendStatements(d).withdraw(current.id, reason))
        return Skip(reason)

    # Admission: whether it goes out now, and where

    async def _admit(self, ready: Ready, ctx: Context) -> tuple[Reminder, Send] | Outcome:
        """Return the reminder with its recipient, and where it goes; or its job's outcome."""
        reminder, state = ready.reminder, ready.admission
        channels = list(self.channels) if self.handler is None else None
        nobody = Recipient(ref=reminder.recipient)
        if state.recipient is None and state.digest is None and state.held is None:
            # As if never put: nothing is muted, quiet or limited.
            routes = routes_of(nobody, channels, reminder.rule)
            assert not isinstance(routes, Reason)
            return _sends(reminder, nobody, Send(routes))
        recipient = state.recipient or nobody
        around = await self._scopes_around(reminder, recipient)
        released = state.held == RELEASED
        decision = decide(
            recipient, reminder, state.now, around=around, channels=channels, released=released
        )
        if isinstance(decision, Outcome):
            return decision
        if released and isinstance(decision, Send):
            return _sends(reminder, recipient, decision)
        job = HeldJob(ctx.id, ctx.token, ctx.started_us, ctx.elapsed_us)
        if state.digest is not None:
            outcome: Outcome | None = await self._app._perform(
                lambda d: AdmissionStatements(d).stay(reminder, job)
            )
            if outcome is not None:
                return outcome
            assert isinstance(decision, Send)  # It is urgent.
            return _sends(reminder, recipient, decision)
        limited = recipient.max_per_hour and not reminder.rule.urgent
        if isinstance(decision, Wait) or limited:
            digests = self.handler is None or self.digest_handler is not None
            answer = await self._admit_locked(
                AdmissionRequest(reminder, around, channels, digests, job)
            )
            if isinstance(answer, Outcome):
                return answer
            decision = answer
        elif state.held is not None or decision.reason is not None:
            reason = decision.reason
            if not await self._app._perform(
                lambda d: AdmissionStatements(d).release(reminder, reason, state.now)
            ):
                return GONE
        return _sends(reminder, recipient, decision)

    async def _scopes_around(self, reminder: Reminder, recipient: Recipient) -> set[str]:
        """The scopes that a reminder is in, if its recipient has muted any."""
        scope = reminder.scope
        if not scope or not any(muted.startswith("scope:") for muted in recipient.muted):
            return set()
        found: dict[str, set[str]] = await self._app._perform(
            lambda d: AdmissionStatements(d).around([scope]), reads=True
        )
        return found.get(scope, set())

    async def _admit_locked(self, request: AdmissionRequest) -> Send | Outcome:
        """Admit one to its recipient and count it, or hold it, under the recipient's lock."""
        answer = await self._locked.submit(request, group=request.reminder.recipient)
        if answer is None:
            answer = await self._app._perform(lambda d: AdmissionStatements(d).admit_again(request))
        return answer

    async def _admit_together(
        self, requests: list[AdmissionRequest]
    ) -> Sequence[Send | Outcome | None]:
        """Admit many of one recipient in one transaction. If that fails, each is admitted alone:
        it fails only for the one that caused it."""
        try:
            answers: Sequence[Send | Outcome | None] = await self._app._perform(
                lambda d: AdmissionStatements(d).admit(requests)
            )
        except Exception:  # noqa: BLE001 -- the one that caused it raises it again alone.
            return [None] * len(requests)
        return answers

    async def _give_back(self, reminder: Reminder) -> None:
        """A reminder that was admitted was surely not sent: it leaves its place to another."""
        if reminder.to is not None and reminder.to.max_per_hour and not reminder.rule.urgent:
            await self._app._perform(lambda d: AdmissionStatements(d).give_back(reminder))

    # The send

    async def _send(
        self, attempt: SendAttempt, reminder: Reminder, ctx: Context, routes: tuple[Route, ...]
    ) -> Sent | Outcome:
        if self.handler is None:
            return await attempt.send(routes, self.channels)
        # What the handler commits together with the job's completion was sent.
        ctx.finish_with = lambda dialect, result: self._recorder.record_in(
            dialect, self._record(attempt.sent_by_handler(result), reminder, ctx)
        )
        return await attempt.call(self.handler, reminder)

    def _outgoing(self, ready: Ready, ctx: Context) -> Outgoing:
        reminder = ready.reminder
        to = reminder.to

        def make(address: str | None, key: str) -> Message:
            tz = None if to is None else to.tz
            return self.messages.make(reminder, address=address, key=key, now=ready.now, tz=tz)

        return Outgoing(
            reminder.key,
            {
                # What a digest did with it under the digest's key, it now does under its own.
                name: msgspec.structs.replace(known, key=reminder.key)
                if known.key.startswith(DIGEST_PREFIX) and not known.status.accepted
                else known
                for name, known in ready.deliveries.items()
            },
            ready.now,
            # It may have been held until later.
            min(reminder.run_at or ready.now, ready.now),
            ctx.job.expires_at,
            make,
            reminder.rule.template,
        )

    async def _record_attempt(self, attempt: SendAttempt, reminder: Reminder) -> Skip | None:
        """Record what was tried; return why it is not to be tried again, if it was withdrawn."""
        if changes := attempt.changes:
            await self._app._perform(
                lambda d: SendStatements(d).record_attempt([reminder], changes)
            )
        ready = await self._ready.submit(reminder.id)
        if ready is None:
            return Skip(Reason("subject_deleted"))
        if ready.reminder.status is not ReminderStatus.ARMED:
            return Skip(_ended(ready.reminder))
        return None

    def _record(self, attempt: SendAttempt, reminder: Reminder, ctx: Context) -> Record:
        """What a send leaves behind."""
        sent = SentReminder(reminder, attempt.changes, ctx.worker)
        return Record(sent, self.follow_up(reminder), ctx)

    def follow_up(self, reminder: Reminder) -> NewJob | None:
        """The job that escalates to the next recipient, if nobody acknowledges the reminder."""
        if reminder.rule.escalate is None or self.escalation is None:
            return None
        later = self.escalation.using(delay=reminder.rule.escalate)
        return later.job(reminder=reminder.id, snoozes=reminder.snoozes)


def _ended(reminder: Reminder) -> Reason:
    return Reason.of("reminder_ended", status=reminder.status.value, why=reminder.reason)


def _sends(reminder: Reminder, recipient: Recipient, send: Send) -> tuple[Reminder, Send]:
    # The handler sees the channels that it may use.
    seen = recipient
    if recipient.channels:
        seen = msgspec.structs.replace(recipient, channels=send.routes)
    return msgspec.structs.replace(reminder, to=seen), send
