"""Whether a due reminder goes out now, and where: what its recipient wants, and how many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.domain.jobs.outcome import Outcome, Snooze
from duetime.domain.reasons import Reason
from duetime.domain.reminders.admission import Send, Wait, decide, routes_of
from duetime.domain.reminders.recipient import Recipient, Route
from duetime.domain.reminders.reminder import Reminder
from duetime.engine.batching import Batcher
from duetime.storage.reminders.admissions import (
    GONE,
    AdmissionState,
    AdmissionStatements,
    Ask,
    reason_after_wait,
)
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime

Make = Callable[[AdmissionStatements], Statements]


async def perform(app: Duetime, make: Make, tx: Any = None, *, reads: bool = False) -> Any:
    """Run statements in a transaction of their own, or in the caller's."""
    return await app._perform(lambda dialect: make(AdmissionStatements(dialect)), tx, reads=reads)


class Admissions:
    """Lets reminders through to recipients with a limit, many of one in one transaction."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._asks: Batcher[Ask, Send | Outcome | None] = Batcher(self._together)

    async def admit(self, ask: Ask) -> Send | Outcome:
        """Let one through and count it, or hold it."""
        answer = await self._asks.submit(ask, group=ask.reminder.recipient)
        if answer is None:
            [answer] = await perform(self._app, lambda s: s.admit([ask]))
        return answer

    async def _together(self, asks: list[Ask]) -> Sequence[Send | Outcome | None]:
        """If that fails, each is asked for alone: it fails for nobody but whose fault it is."""
        try:
            answers: Sequence[Send | Outcome | None] = await perform(
                self._app, lambda s: s.admit(asks)
            )
        except Exception:  # noqa: BLE001 -- the one that caused it gets it when it is tried alone.
            return [None] * len(asks)
        return answers


async def admit(
    app: Duetime,
    admissions: Admissions,
    reminder: Reminder,
    admission: AdmissionState,
    *,
    channels: list[str] | None,
    digests: bool,
) -> tuple[Reminder, Send] | Outcome:
    """Whether a due reminder goes out now: to whom and where, or what its job ends with.

    `admission`: what is known of its recipient, read since it was claimed.
    `channels`: those that the app has; None: a handler sends. `digests`: whether what waits for
    the recipient's limit can go out together. The reminder comes back with its recipient.
    """
    nobody = Recipient(ref=reminder.recipient)
    if admission.recipient is None and admission.digest is None and admission.held is None:
        # As if never put: nothing is muted, quiet or limited.
        routes = routes_of(nobody, channels, reminder.rule)
        assert not isinstance(routes, Reason)
        return _sends(reminder, nobody, Send(routes))
    recipient = admission.recipient or nobody
    around: set[str] = set()
    if reminder.scope and any(muted.startswith("scope:") for muted in recipient.muted):
        scope = reminder.scope
        found = await perform(app, lambda s: s.around([scope]), reads=True)
        around = found.get(scope, set())
    decision = decide(recipient, reminder, admission.now, around=around, channels=channels)
    if isinstance(decision, Outcome):
        return decision
    if admission.digest is not None:
        outcome: Outcome = await perform(app, lambda s: s.stay(reminder))
        return outcome
    if isinstance(decision, Send) and recipient.max_per_hour and not reminder.rule.urgent:
        answer = await admissions.admit(Ask(reminder, around, channels, digests))
        if isinstance(answer, Outcome):
            return answer
        decision = answer
    elif isinstance(decision, Wait):
        waits = decision
        await perform(app, lambda s: s.hold(reminder, waits))
        return Snooze(waits.until - admission.now, waits.reason)
    elif admission.held is not None or decision.note is not None:
        note = decision.note or reason_after_wait(reminder)
        if not await perform(app, lambda s: s.note(reminder, note)):
            return GONE
    return _sends(reminder, recipient, decision)


async def give_back(app: Duetime, reminder: Reminder) -> None:
    """A reminder that was let through was surely not sent: it leaves its place to another."""
    if reminder.to is not None and reminder.to.max_per_hour and not reminder.rule.urgent:
        await perform(app, lambda s: s.give_back(reminder))


async def disable_all(
    app: Duetime, recipient: str, routes: Sequence[tuple[Route, str]], *, worker: str
) -> None:
    """Addresses of a recipient want nothing more: they are not tried until put again.

    Each comes with its reason.
    """
    if not recipient:
        # To nobody in particular: there is no one to note it for.
        return
    for route, reason in routes:
        await _disable(app, recipient, route, reason, worker)


async def _disable(app: Duetime, recipient: str, route: Route, reason: str, worker: str) -> None:
    address = route.address or recipient
    await perform(
        app,
        lambda s: s.disable(
            recipient, channel=route.channel, address=address, reason=reason, actor=worker
        ),
    )


def _sends(reminder: Reminder, recipient: Recipient, send: Send) -> tuple[Reminder, Send]:
    # The handler sees the channels that it may use.
    seen = recipient
    if recipient.channels:
        seen = msgspec.structs.replace(recipient, channels=send.routes)
    return msgspec.structs.replace(reminder, to=seen), send
