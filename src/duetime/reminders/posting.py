"""One attempt to hand a reminder over: its channels in turn, and the notes of what they did."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.channels.channel import Channel, NotSent, Sent
from duetime.domain.delivery import Delivery, DeliveryStatus, say_failures, times
from duetime.domain.outcome import Discard, Outcome, Retry, Snooze
from duetime.domain.rate import Rate
from duetime.domain.recipient import Route
from duetime.domain.reminder import REMIND_TASK
from duetime.domain.rule import say_moment
from duetime.engine.context import Context
from duetime.errors import InvalidInput
from duetime.reminders.deliveries import perform
from duetime.storage.sends import Ready

if TYPE_CHECKING:
    from duetime.app import Duetime
    from duetime.reminders.messages import Messages

_LONGEST_ERROR = 2_000


class Line(msgspec.Struct, frozen=True):
    """A channel of the app, and how it is used."""

    channel: Channel
    tries: int | None = None
    """How often it is asked until the next one is; None: as often as the job has attempts."""
    rate: Rate | None = None


class Posting:
    """One attempt. A channel that failed for good is not asked again in a later one."""

    def __init__(self, app: Duetime, ready: Ready, ctx: Context) -> None:
        self._app = app
        self._ready = ready
        self._ctx = ctx
        self._deliveries = dict(ready.deliveries)
        self._changed: dict[str, None] = {}
        self.disabled: list[tuple[Route, str]] = []
        """Where nothing more is wanted, and what was said there."""

    @property
    def notes(self) -> list[dict[str, Any]]:
        """What changed, as it is recorded."""
        found = [self._deliveries[name] for name in self._changed]
        return [
            {
                "channel": one.channel,
                "key": one.key,
                "status": one.status,
                "attempts": one.attempts,
                "external_id": one.external_id,
                "error": one.error,
                "next_at": one.next_at,
            }
            for one in found
        ]

    def known(self, channel: str) -> Delivery:
        """What this channel did with the reminder so far."""
        reminder = self._ready.reminder
        return self._deliveries.get(channel) or Delivery(
            id=0,
            reminder_id=reminder.id,
            round=reminder.snoozes,
            channel=channel,
            key=reminder.key,
            status=DeliveryStatus.PENDING,
            attempts=0,
            external_id=None,
            error=None,
            next_at=None,
            sent_at=None,
            updated_at=self._ready.now,
        )

    def note(self, channel: str, status: DeliveryStatus, *, tried: int = 1, **more: Any) -> None:
        """Note what a channel did just now."""
        known = self.known(channel)
        if (error := more.get("error")) is not None:
            more["error"] = " ".join(str(error).replace("\x00", " ").split())[:_LONGEST_ERROR]
        self._deliveries[channel] = msgspec.structs.replace(
            known, status=status, attempts=known.attempts + tried, **{"next_at": None, **more}
        )
        self._changed[channel] = None

    def note_sent(self, channel: str, sent: Sent) -> None:
        """Note that a channel accepted it."""
        external_id = None if sent.external_id is None else str(sent.external_id)
        self.note(channel, DeliveryStatus.SENT, external_id=external_id)

    def taken(self) -> Sent | None:
        """A channel took it before, as it told by a receipt; the answer to us was lost."""
        for known in list(self._deliveries.values()):
            if known.status.accepted:
                self.note(known.channel, known.status, tried=0)
                return Sent(known.external_id)
        return None

    async def send(
        self,
        routes: Iterable[Route],
        lines: dict[str, Line],
        messages: Messages,
        *,
        tz: str | None = None,
    ) -> Sent | Outcome:
        """Ask the channels in turn, until one accepts it or is to be asked again later."""
        if (taken := self.taken()) is not None:
            return taken
        for route in routes:
            known = self.known(route.channel)
            if known.status.gave_up:
                continue
            line = lines.get(route.channel)
            if line is None:
                error = f"there is no channel {route.channel!r} here"
                self.note(route.channel, DeliveryStatus.FAILED, tried=0, error=error)
                continue
            try:
                message = messages.make(
                    self._ready.reminder, address=route.address, now=self._ready.now, tz=tz
                )
            except InvalidInput as error:
                return Discard(str(error))
            outcome = await self._ask(route, line, message)
            if outcome is not None:
                return outcome
        if not self._deliveries:
            return Discard("there is neither an @app.on_reminder handler nor a channel")
        return Discard(say_failures(self._deliveries.values()))

    async def _ask(self, route: Route, line: Line, message: Any) -> Sent | Outcome | None:
        """Ask one channel; None: it failed for good."""
        name = route.channel
        if line.rate is not None and (waits := await self._wait_for_place(name, line.rate)):
            return waits
        broke: Exception | None = None
        try:
            sent = await line.channel.send(message)
        except NotSent as error:
            failure = error
        except Exception as error:  # noqa: BLE001 A channel may raise anything: others are asked.
            failure, broke = NotSent(f"{type(error).__name__}: {error}", passing=True), error
        else:
            self.note_sent(name, sent if isinstance(sent, Sent) else Sent())
            return sent if isinstance(sent, Sent) else Sent()
        if failure.disable:
            self.disabled.append((route, str(failure)))
        tried = self.known(name).attempts + 1
        if failure.passing and tried < (line.tries or self._ctx.job.max_attempts):
            wait, at = await self._next_try(tried, failure)
            if at is not None:
                self.note(name, DeliveryStatus.PENDING, error=failure, next_at=at)
                return self._again(wait, f"{name} failed{times(tried)}: {failure}", broke)
        self.note(name, DeliveryStatus.FAILED, error=failure)
        return None

    async def _wait_for_place(self, channel: str, rate: Rate) -> Outcome | None:
        promised = self.known(channel).next_at
        wait: timedelta | None = await perform(
            self._app, lambda s: s.take_place(channel, rate, promised)
        )
        if wait is None:
            return None
        at = await self._app.now() + wait
        self.note(channel, DeliveryStatus.PENDING, tried=0, next_at=at)
        reason = f"{channel} takes {rate}: its next free place is at {say_moment(at)}"
        return Snooze(max(wait, timedelta(0)), reason)

    async def _next_try(self, tried: int, failure: NotSent) -> tuple[timedelta, datetime | None]:
        """How long to wait for the next try, and when that is; None: it would be too late."""
        policy = self._app.known_tasks[REMIND_TASK].options.retry
        wait = failure.retry_after or policy.delay(tried, failure, Random())
        at = await self._app.now() + wait
        expires_at = self._ctx.job.expires_at
        return wait, None if expires_at is not None and at >= expires_at else at

    def _again(self, wait: timedelta, reason: str, broke: Exception | None) -> Outcome:
        """A job's attempts do not end what a channel's tries allow: the last is given back.

        The traceback is of a channel that broke; one that tells a failure says enough.
        """
        left = self._ctx.attempt < self._ctx.job.max_attempts
        outcome = Retry(reason, after=wait) if left else Snooze(wait, reason)
        outcome.__cause__ = broke
        return outcome
