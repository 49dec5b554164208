"""One attempt to send a reminder or a digest: its channels in turn, and what each of them did."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duetime.channels.channel import Channel, Message, NotSent, Sent
from duetime.domain.jobs.outcome import Completed, Discard, Outcome, Retry, Snooze
from duetime.domain.jobs.rate import Rate
from duetime.domain.reasons import Reason
from duetime.domain.reminders.delivery import (
    HANDLER,
    Delivery,
    DeliveryStatus,
    channel_failed,
    channels_failed,
    clean_error,
    clean_external_id,
    explain_exception,
)
from duetime.domain.reminders.recipient import Route
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.engine.context import Context
from duetime.engine.threads import call_in_thread
from duetime.errors import InvalidInput
from duetime.storage.reminders.recipients import RecipientStatements
from duetime.storage.reminders.sends import SendStatements

if TYPE_CHECKING:
    from duetime.app import Duetime

_RETRY_FOR = timedelta(days=1)
"""How long a reminder that does not expire is retried, unless its channel says otherwise."""
_MIN_WAIT = timedelta(seconds=1)


class ConfiguredChannel(msgspec.Struct, frozen=True):
    """A channel of the app, and how it is used."""

    channel: Channel
    tries: int | None = None
    """How often it is tried at most; None: until the reminder expires, or for `retry_for`."""
    rate: Rate | None = None
    retry_for: timedelta | None = None
    """How long it is tried again at most, from the time at which the reminder was due."""


class Outgoing(NamedTuple):
    """What is to be sent: a reminder or a digest, and what its channels did with it so far."""

    key: str
    deliveries: dict[str, Delivery]
    now: datetime
    due_at: datetime
    """From when on it was to be sent."""
    expires_at: datetime | None
    make: Callable[[str | None, str], Message]
    """Returns the message to an address, under a key. Raises `InvalidInput`."""
    template: str | None


class SendHandler:
    """The application's function that sends, async or not: it takes what is to be sent and, if it
    has two parameters, the context."""

    def __init__(self, function: Callable[..., Any]) -> None:
        names = list(inspect.signature(function).parameters)
        self.context_name = names[1] if len(names) > 1 else None
        self.function = function
        self._is_async = inspect.iscoroutinefunction(function)

    async def call(self, what: Any, ctx: Context) -> Any:
        args = (what,) if self.context_name is None else (what, ctx)
        if self._is_async:
            return await self.function(*args)
        return await call_in_thread(self.function, *args)


class SendAttempt:
    """One attempt. A channel that failed for good is not tried again in a later one."""

    def __init__(self, app: Duetime, outgoing: Outgoing, ctx: Context) -> None:
        self._app = app
        self._outgoing = outgoing
        self._ctx = ctx
        self._deliveries = dict(outgoing.deliveries)
        self._changed: dict[str, None] = {}
        self.disabled: list[tuple[Route, str]] = []
        """Routes whose receiver wants nothing more, and its reason."""

    @property
    def changes(self) -> list[dict[str, Any]]:
        """The deliveries that changed, as they are recorded."""
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
        """What this channel did so far."""
        return self._deliveries.get(channel) or Delivery(
            id=0,
            reminder_id=0,
            round=0,
            channel=channel,
            key=self._outgoing.key,
            status=DeliveryStatus.PENDING,
            attempts=0,
            external_id=None,
            error=None,
            next_at=None,
            sent_at=None,
            updated_at=self._outgoing.now,
        )

    def update(self, channel: str, status: DeliveryStatus, *, tried: int = 1, **more: Any) -> None:
        """Keep what a channel did just now, to be recorded with the attempt."""
        known = self.known(channel)
        self._deliveries[channel] = msgspec.structs.replace(
            known, status=status, attempts=known.attempts + tried, **{"next_at": None, **more}
        )
        self._changed[channel] = None

    def mark_sent(self, channel: str, sent: Sent) -> None:
        """A channel accepted it. Those that were tried are not tried again; those that were not
        (it is sent again on request, or they waited for their rate) are, if it bounces."""
        for other in list(self._deliveries.values()):
            if other.channel != channel and other.status is DeliveryStatus.PENDING:
                status = DeliveryStatus.FAILED if other.attempts else DeliveryStatus.PENDING
                self.update(other.channel, status, tried=0)
        external_id = clean_external_id(sent.external_id)
        self.update(channel, DeliveryStatus.SENT, external_id=external_id)

    def accepted_before(self) -> Sent | None:
        """A channel accepted it before, as a receipt reported; its answer to us was lost."""
        for known in list(self._deliveries.values()):
            if known.status.accepted:
                self.update(known.channel, known.status, tried=0)
                return Sent(known.external_id)
        return None

    async def disable_addresses(self, recipient: str) -> None:
        """Addresses whose receiver wants nothing more are not tried until they are put again."""
        if not recipient:
            # It goes to nobody in particular: there is no one to keep it for.
            return
        for route, reason in self.disabled:
            await self._disable(recipient, route, reason)

    async def _disable(self, recipient: str, route: Route, reason: str) -> None:
        address, actor = route.address or recipient, self._ctx.worker
        await self._app._perform(
            lambda d: RecipientStatements(d).disable(
                recipient, channel=route.channel, address=address, reason=reason, actor=actor
            )
        )

    # By the app's handler

    async def call(self, handler: SendHandler, what: Any) -> Sent | Outcome:
        """Have the handler send it. What it raises, other than an outcome, is raised again."""
        if (sent := self.accepted_before()) is not None:
            return sent
        if self.known(HANDLER).status.gave_up:
            return Discard(channels_failed(self._deliveries.values()))
        try:
            outcome = await handler.call(what, self._ctx)
        except Outcome as raised:
            outcome = raised
        except Exception as error:
            if not self._ctx.committed:
                self.update(HANDLER, DeliveryStatus.PENDING, error=explain_exception(error))
            raise
        answer = _read_answer(outcome)
        if isinstance(answer, Sent):
            self.mark_sent(HANDLER, answer)
        elif isinstance(answer, Retry | Discard) and not self._ctx.committed:
            lasts = isinstance(answer, Discard)
            status = DeliveryStatus.FAILED if lasts else DeliveryStatus.PENDING
            self.update(HANDLER, status, error=_explain_outcome(answer))
        return answer

    def sent_by_handler(self, result: Any) -> SendAttempt:
        """As it is if the handler has sent it, which may have returned the receiver's id."""
        attempt = SendAttempt(self._app, self._outgoing, self._ctx)
        attempt.mark_sent(HANDLER, result if isinstance(result, Sent) else Sent())
        return attempt

    # By channels

    async def send(
        self, routes: Iterable[Route], channels: dict[str, ConfiguredChannel]
    ) -> Sent | Outcome:
        """Try the channels in turn, until one accepts it or is to be tried again later."""
        if (sent := self.accepted_before()) is not None:
            return sent
        routes = [route for route in routes if not self.known(route.channel).status.gave_up]
        # Those that wait for a later try are passed over; unless somebody has the job run early.
        for route in [route for route in routes if self._is_due(route.channel)] or routes:
            configured = channels.get(route.channel)
            if configured is None:
                missing = Reason.of("channel_missing", channel=route.channel)
                self.update(route.channel, DeliveryStatus.FAILED, tried=0, error=missing)
                continue
            try:
                message = await self._make(route)
            except InvalidInput as error:
                return Discard(Reason.of("message_failed", text=str(error)))
            outcome = await self._try(route, configured, message)
            if outcome is not None:
                return outcome
        if not self._deliveries:
            return Discard(Reason("no_sender"))
        return await self._wait_for_any(routes)

    async def _make(self, route: Route) -> Message:
        """Make the message, off the loop if it has a template: its author decides what it costs."""
        address, key = route.address, self.known(route.channel).key
        if self._outgoing.template is None:
            return self._outgoing.make(address, key)
        return await call_in_thread(self._outgoing.make, address, key)

    def _is_due(self, channel: str) -> bool:
        next_at = self.known(channel).next_at
        return next_at is None or next_at <= self._outgoing.now

    async def _wait_for_any(self, routes: Iterable[Route]) -> Outcome:
        """All were tried: wait for the first that may be tried again, if there is one."""
        failures = channels_failed(self._deliveries.values())
        waits = [
            next_at
            for route in routes
            if self.known(route.channel).status is DeliveryStatus.PENDING
            and (next_at := self.known(route.channel).next_at) is not None
        ]
        if not waits:
            return Discard(failures)
        return self._again(min(waits) - await self._app.now(), failures, None)

    async def _try(
        self, route: Route, configured: ConfiguredChannel, message: Message
    ) -> Sent | Outcome | None:
        """Try one channel; None: it failed, and the next one is to be tried."""
        name = route.channel
        rate = configured.rate
        if rate is not None and (waits := await self._wait_for_place(name, rate)):
            return waits
        broke: Exception | None = None
        try:
            sent = await configured.channel.send(message)
        except NotSent as error:
            failure, reason = error, Reason.of("not_sent", text=clean_error(error))
        except Exception as error:  # noqa: BLE001 A channel may raise anything: others are tried.
            failure, broke = NotSent(str(error), transient=True), error
            reason = explain_exception(error)
        else:
            answer = _read_answer(sent)
            answer = answer if isinstance(answer, Sent) else Sent()
            self.mark_sent(name, answer)
            return answer
        if failure.disable:
            self.disabled.append((route, clean_error(failure)))
        tried = self.known(name).attempts + 1
        if failure.transient and tried < (configured.tries or tried + 1):
            wait, is_in_time = await self._next_try(configured, tried, failure)
            if wait is not None:
                at = await self._app.now() + wait
                self.update(name, DeliveryStatus.PENDING, error=reason, next_at=at)
                if is_in_time and tried < (configured.tries or self._ctx.job.max_attempts):
                    return self._again(wait, channel_failed(name, tried, reason), broke)
                return None
        self.update(name, DeliveryStatus.FAILED, error=reason)
        return None

    async def _wait_for_place(self, channel: str, rate: Rate) -> Outcome | None:
        promised = self.known(channel).next_at
        wait: timedelta | None = await self._app._perform(
            lambda d: SendStatements(d).take_place(channel, rate, promised)
        )
        if wait is None:
            return None
        at = await self._app.now() + wait
        self.update(channel, DeliveryStatus.PENDING, tried=0, next_at=at)
        reason = Reason.of("channel_rate", channel=channel, rate=str(rate), at=at)
        return Snooze(max(wait, timedelta(0)), reason)

    async def _next_try(
        self, configured: ConfiguredChannel, tried: int, failure: NotSent
    ) -> tuple[timedelta | None, bool]:
        """How long to wait for the next try (None: there is none), and whether that is as long as
        the retry policy says. If that would be too late, half of the time that is left."""
        policy = self._app._known_tasks[REMIND_TASK].options.retry
        wait = failure.retry_after or policy.delay(tried, failure, Random())
        left = self._ends_at(configured) - await self._app.now()
        if wait < left:
            return wait, True
        if failure.retry_after is not None or left < 2 * _MIN_WAIT:
            return None, False
        return left / 2, False

    def _ends_at(self, configured: ConfiguredChannel) -> datetime:
        """From when on a channel is not tried again."""
        expires_at, due_at = self._outgoing.expires_at, self._outgoing.due_at
        if expires_at is None:
            return due_at + (configured.retry_for or _RETRY_FOR)
        if configured.retry_for is None:
            return expires_at
        return min(expires_at, due_at + configured.retry_for)

    def _again(self, wait: timedelta, reason: Reason, broke: Exception | None) -> Outcome:
        """Try again later. The job's attempts do not limit the tries of its channels: the last
        attempt is given back.

        The traceback is of a channel that broke; one that reports a failure needs none.
        """
        left = self._ctx.attempt < self._ctx.job.max_attempts
        wait = max(wait, timedelta(0))
        outcome = Retry(reason, after=wait) if left else Snooze(wait, reason)
        outcome.__cause__ = broke
        return outcome


def _explain_outcome(outcome: Retry | Discard) -> Reason:
    """Why a handler did not send it, in its own words if it gave any."""
    given = outcome.args[0] if outcome.args else None
    if isinstance(given, Reason):
        return given
    if given in (None, ""):
        return Reason("retry" if isinstance(outcome, Retry) else "discarded")
    return Reason.of("not_sent", text=clean_error(given))


def _read_answer(value: Any) -> Sent | Outcome:
    """What a handler or a channel returned. Whatever it is: the message went out."""
    try:
        if isinstance(value, Sent):
            return value
        if isinstance(value, Outcome) and not isinstance(value, Completed):
            return value
    except Exception:  # noqa: BLE001 -- reading an object's class may fail.
        pass
    return Sent()
