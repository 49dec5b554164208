"""`app.recipients`: how and when people are reached; and what becomes of a reminder to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from duetime.domain.jobs.job import check_name, check_sought
from duetime.domain.jobs.outcome import Outcome, Snooze
from duetime.domain.reminders.admission import Send, Wait, decide, routes_of
from duetime.domain.reminders.recipient import Recipient, Route, make_recipient, parse_muted
from duetime.domain.reminders.reminder import Reminder
from duetime.errors import InvalidInput, RecipientNotFound
from duetime.reminders.gathering import Gathering
from duetime.storage.reminders.admissions import GONE, AdmissionStatements, Ask, Desk, said_after
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime

Make = Callable[[AdmissionStatements], Statements]


async def perform(app: Duetime, make: Make, tx: Any = None, *, reads: bool = False) -> Any:
    """Run statements in a transaction of their own, or in the caller's."""
    return await app._perform(lambda dialect: make(AdmissionStatements(dialect)), tx, reads=reads)


class Recipients:
    """`app.recipients`: who is reminded, and how. One who is not here is reached by their ref."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def put(
        self,
        ref: str,
        *,
        tz: str | None = None,
        channels: Any = None,
        quiet: str | None = None,
        muted: Any = None,
        most_per_hour: int | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> str:
        """Add a recipient or change all of it; return `added`, `changed` or `same`.

        `channels`: `{"push": "token", "email": "ann@example.org"}`, in the order in which they are
        tried. `quiet`: "22:00-07:00" on the clock of `tz`, else on the subject's. `muted`: True, or
        any of "scope:…", "subject:…", "channel:…", "rule:…". `most_per_hour`: what is more waits,
        and goes out in one digest. Addresses that were disabled are tried again.
        """
        given = make_recipient(
            ref, tz=tz, channels=channels, quiet=quiet, muted=muted, most_per_hour=most_per_hour
        )
        return await self._change(ref, lambda _: given, by, tx)

    async def mute(self, ref: str, *what: str, by: str = "unknown", tx: Any = None) -> str:
        """Send less: "all", or any of "scope:…", "subject:…", "channel:…", "rule:…"."""
        added = parse_muted(_some(what))

        def change(known: Recipient | None) -> Recipient:
            before = known or Recipient(ref=check_name(ref, what="recipient"))
            return msgspec.structs.replace(before, muted=parse_muted([*before.muted, *added]))

        return await self._change(ref, change, by, tx)

    async def unmute(self, ref: str, *what: str, by: str = "unknown", tx: Any = None) -> str:
        """Take back what was muted, in the same words."""
        removed = set(parse_muted(_some(what)))

        def change(known: Recipient | None) -> Recipient:
            if known is None:
                raise RecipientNotFound(ref)
            kept = tuple(one for one in known.muted if one not in removed)
            return msgspec.structs.replace(known, muted=kept)

        return await self._change(ref, change, by, tx)

    async def get(self, ref: str) -> Recipient:
        """Return the recipient; raise `RecipientNotFound`."""
        check_sought(ref, what="recipient")
        found: Recipient | None = await perform(self._app, lambda s: s.recipient(ref), reads=True)
        if found is None:
            raise RecipientNotFound(ref)
        return found

    async def find(self, *, after: str = "") -> list[Recipient]:
        """Return recipients by reference, at most 1,000; `after` the last one for the next."""
        found: list[Recipient] = await perform(
            self._app, lambda s: s.recipients(after=after), reads=True
        )
        return found

    async def delete(self, ref: str, *, by: str = "unknown", tx: Any = None) -> None:
        """Forget all about a recipient, who is then reached as if never put."""
        actor = check_name(by, what="actor (by=)")
        if not await perform(self._app, lambda s: s.delete_recipient(ref, actor=actor), tx):
            raise RecipientNotFound(ref)

    async def _change(
        self, ref: str, change: Callable[[Recipient | None], Recipient], by: str, tx: Any
    ) -> str:
        actor = check_name(by, what="actor (by=)")
        answer: str = await perform(
            self._app, lambda s: s.put_recipient(ref, change, actor=actor), tx
        )
        return answer


class Gate:
    """Lets reminders through to recipients with a limit, many of one in one transaction."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._asks: Gathering[Ask, Send | Outcome | None] = Gathering(self._together)

    async def admit(self, ask: Ask) -> Send | Outcome:
        """Let one through and count it, or hold it."""
        answer = await self._asks.get(ask, group=ask.reminder.recipient)
        if answer is None:
            [answer] = await perform(self._app, lambda s: s.admit([ask]))
        return answer

    async def _together(self, asks: list[Ask]) -> Sequence[Send | Outcome | None]:
        """If that fails, each is asked for alone: it fails for nobody but whose fault it is."""
        try:
            answers: Sequence[Send | Outcome | None] = await perform(
                self._app, lambda s: s.admit(asks)
            )
        except Exception:  # noqa: BLE001 -- whose it is, is told it when asked for alone.
            return [None] * len(asks)
        return answers


async def admit(
    app: Duetime,
    gate: Gate,
    reminder: Reminder,
    desk: Desk,
    *,
    channels: list[str] | None,
    digests: bool,
) -> tuple[Reminder, Send] | Outcome:
    """Whether a due reminder goes out now: to whom and where, or what its job ends with.

    `desk`: what is known of its recipient, read since it was claimed.
    `channels`: those that the app has; None: a handler sends. `digests`: whether what waits for
    the recipient's limit can go out together. The reminder comes back with its recipient.
    """
    nobody = Recipient(ref=reminder.recipient)
    if desk.recipient is None and desk.digest is None and desk.held is None:
        # As if never put: nothing is muted, quiet or limited.
        routes = routes_of(nobody, channels, reminder.rule)
        assert not isinstance(routes, str)
        return _sends(reminder, nobody, Send(routes))
    recipient = desk.recipient or nobody
    around: set[str] = set()
    if reminder.scope and any(muted.startswith("scope:") for muted in recipient.muted):
        scope = reminder.scope
        found = await perform(app, lambda s: s.around([scope]), reads=True)
        around = found.get(scope, set())
    decision = decide(recipient, reminder, desk.now, around=around, channels=channels)
    if isinstance(decision, Outcome):
        return decision
    if desk.digest is not None:
        outcome: Outcome = await perform(app, lambda s: s.stay(reminder))
        return outcome
    if isinstance(decision, Send) and recipient.most_per_hour and not reminder.rule.urgent:
        answer = await gate.admit(Ask(reminder, around, channels, digests))
        if isinstance(answer, Outcome):
            return answer
        decision = answer
    elif isinstance(decision, Wait):
        waits = decision
        await perform(app, lambda s: s.hold(reminder, waits))
        return Snooze(waits.until - desk.now, waits.reason)
    elif desk.held is not None or decision.note is not None:
        note = decision.note or said_after(reminder)
        if not await perform(app, lambda s: s.note(reminder, note)):
            return GONE
    return _sends(reminder, recipient, decision)


async def give_back(app: Duetime, reminder: Reminder) -> None:
    """A reminder that was let through was surely not sent: it leaves its place to another."""
    if reminder.to is not None and reminder.to.most_per_hour and not reminder.rule.urgent:
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


def _some(what: tuple[str, ...]) -> tuple[str, ...]:
    if not what:
        raise InvalidInput("Say what: 'all', 'scope:guild:1', 'channel:email', …")
    return what
