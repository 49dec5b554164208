"""Whether a due reminder goes out now: muted, where to, quiet hours, at most so many an hour."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from duetime.domain.jobs.outcome import Skip
from duetime.domain.reasons import Reason
from duetime.domain.reminders.quiet import defer
from duetime.domain.reminders.recipient import Recipient, Route
from duetime.domain.reminders.reminder import Reminder
from duetime.domain.reminders.rule import Rule
from duetime.domain.schedules.cron import parse_zone

HOUR = timedelta(hours=1)
RELEASED = "released"
"""How a reminder is held that a person let through: by nothing, however often it is tried."""
_LEAD = timedelta(minutes=1)
"""How long before a reminder would expire, a digest with it goes out."""
_GATHER = timedelta(seconds=2)
"""How long a digest waits for more, if it is to go out at once."""


class Uses(NamedTuple):
    """What a recipient got in the last hour, beside this message."""

    taken: int
    frees_at: datetime | None = None
    """When the oldest of as many as are allowed is an hour old; None if there are not so many."""
    admitted: bool = False
    """This message was let through within the hour: it is tried again."""


class Send(NamedTuple):
    """Now, by these routes in turn."""

    routes: tuple[Route, ...]
    reason: Reason | None = None
    """What people should know about it."""


class Wait(NamedTuple):
    """Not before `until`."""

    until: datetime
    reason: Reason
    held: str
    """By `quiet` hours, or by the `limit`: then what waits goes out together."""


def decide(
    recipient: Recipient,
    reminder: Reminder,
    now: datetime,
    *,
    around: Collection[str] = (),
    channels: Sequence[str] | None = None,
    uses: Uses | None = None,
    released: bool = False,
) -> Send | Wait | Skip:
    """What becomes of a reminder that is due. `around`: the scopes that it is in, all levels.

    `channels`: those that the app has; None: a handler sends. `uses`: if None, the limit is not
    checked. `released`: a person had it sent in spite of quiet hours and limit.
    """
    if (muted := why_muted(recipient, reminder, around)) is not None:
        return Skip(muted)
    routes = routes_of(recipient, channels, reminder.rule)
    if isinstance(routes, Reason):
        return Skip(routes)
    if reminder.rule.urgent or released:
        return Send(routes)
    reason = None
    quiet = recipient.quiet_hours(reminder.tz)
    until = now if quiet is None else defer(now, quiet)
    if quiet is not None and until > now:
        expires_at = expiry(reminder)
        if expires_at is None or expires_at > until:
            local = until.astimezone(parse_zone(quiet.tz))
            facts = {"until": until, "local": f"{local:%H:%M}", "tz": quiet.tz}
            hours = {"quiet": quiet.text, "recipient": recipient.ref}
            return Wait(until, Reason.of("quiet_hours", **facts, **hours), "quiet")
        reason = Reason.of(
            "sent_in_quiet_hours",
            quiet=quiet.text,
            recipient=recipient.ref,
            expires_at=expires_at,
        )
    if uses is None or recipient.max_per_hour is None or uses.admitted:
        return Send(routes, reason)
    if uses.taken < recipient.max_per_hour:
        return Send(routes, reason)
    free = max(now, uses.frees_at or now)
    until = free if quiet is None else defer(free, quiet)
    limit = {"recipient": recipient.ref, "limit": recipient.max_per_hour}
    return Wait(until, Reason.of("hourly_limit", until=until, **limit), "limit")


def why_muted(recipient: Recipient, reminder: Reminder, around: Collection[str]) -> Reason | None:
    """Which opt-out covers a reminder. Channels are left out: see `routes_of`."""
    for muted in recipient.muted:
        kind, _, name = muted.partition(":")
        if kind == "all":
            return Reason.of("muted_all", recipient=recipient.ref)
        if (
            (kind == "scope" and (name == reminder.scope or name in around))
            or (kind == "subject" and name == reminder.subject)
            or (kind == "rule" and name == reminder.rule.text)
        ):
            return Reason.of("muted", recipient=recipient.ref, kind=kind, name=name)
    return None


def routes_of(
    recipient: Recipient, channels: Sequence[str] | None, rule: Rule | None = None
) -> tuple[Route, ...] | Reason:
    """Where to send, in order; or why nowhere.

    Those that the rule names, in the rule's order, else the recipient's own, else all of the app's.
    A handler finds its own way if the recipient has no channels.
    """
    own = {route.channel: route for route in recipient.channels}
    named = rule.channels if rule is not None and rule.channels is not None else None
    if not own:
        names = named or tuple(channels or ())
        if not names:
            return ()
        found = [Route(name) for name in names]
    else:
        found = [own[name] for name in named or own if name in own]
        if not found:
            return Reason.of("no_rule_channel", recipient=recipient.ref, channels=list(named or ()))
    left: list[Route] = []
    gone: list[Reason] = []
    off = {(one.channel, one.address): one.reason for one in recipient.disabled}
    for route in found:
        address = route.address or recipient.ref or None
        if f"channel:{route.channel}" in recipient.muted:
            gone.append(Reason.of("channel_muted", channel=route.channel))
        elif (reason := off.get((route.channel, address or ""))) is not None:
            gone.append(Reason.of("channel_disabled", channel=route.channel, text=reason))
        else:
            left.append(Route(route.channel, address))
    if not left:
        return Reason.of("no_channel_left", recipient=recipient.ref, channels=gone)
    return tuple(left)


def expiry(reminder: Reminder) -> datetime | None:
    """From when on it is too late to send it: never, if it was sent again on request."""
    if reminder.never_expires:
        return None
    return reminder.rule.expires_at(reminder.time, reminder.due_at)


def digest_time(
    recipient: Recipient, waiting: Iterable[Reminder], now: datetime, uses: Uses
) -> datetime:
    """When what waits goes out together: as the hour and the quiet hours allow it, but before the
    first of it would expire.

    For a recipient without a time zone, the quiet hours are those of each subject: then it goes
    out as soon as any of it may, see `leave_out_quiet`.
    """
    members = list(waiting)
    most = recipient.max_per_hour
    full = most is not None and uses.taken >= most and not uses.admitted
    at = max(now, uses.frees_at or now) if full else now
    all_quiet = [recipient.quiet_hours(tz) for tz in sorted({one.tz for one in members})]
    at = min((defer(at, quiet) for quiet in all_quiet if quiet is not None), default=at)
    return min([at, *(_send_by(one, ends) for one in members if (ends := expiry(one)))])


def leave_out_quiet(
    recipient: Recipient, waiting: Sequence[Reminder], now: datetime
) -> list[Reminder]:
    """What goes out in a digest now, without the reminders in whose time zone it is quiet.

    Those that would expire before that ends go, too; and all of it, if it is quiet for all.
    """
    until = {
        tz: defer(now, quiet)
        for tz in {one.tz for one in waiting}
        if (quiet := recipient.quiet_hours(tz)) is not None
    }
    if all(end > now for end in until.values()):
        return list(waiting)
    return [
        one
        for one in waiting
        if (end := until[one.tz]) <= now or ((ends := expiry(one)) is not None and ends <= end)
    ]


def gather(at: datetime, reminder: Reminder, now: datetime) -> datetime:
    """When a digest is first checked: a little later than at once, for what else is due now."""
    expires_at = expiry(reminder)
    pause = _GATHER
    if expires_at is not None:
        pause = min(_GATHER, max(expires_at - now, timedelta(0)) / 2)
    return max(at, now + pause)


def _send_by(reminder: Reminder, expires_at: datetime) -> datetime:
    """It depends on nothing that changes, so it comes."""
    return expires_at - min(_LEAD, (expires_at - reminder.time) / 4)
