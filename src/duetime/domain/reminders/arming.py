"""Which of a subject's reminders are armed: whose rules hold, and what becomes of each time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec

from duetime.domain.checks import check_moment
from duetime.domain.reasons import Reason
from duetime.domain.reminders.rule import Rule, rule_times


class Level(NamedTuple):
    """The subject, or a scope around it. Rules: None inherits those of the next level out."""

    name: str
    rules: tuple[Rule, ...] | None
    locked: bool = False
    problem: Reason | None = None
    """What of a scope's row cannot be used; read only to be shown."""


class Resolved(NamedTuple):
    """The rules that hold, and the name of the level that they come from: None if none has any."""

    rules: tuple[Rule, ...]
    source: str | None


def resolve_rules(chain: Sequence[Level | tuple[str, tuple[Rule, ...] | None, bool]]) -> Resolved:
    """Return the rules of the nearest level that sets them, from the subject outwards.

    No rules, `()`, is a setting too. A locked level hides every level inside it, so the outermost
    lock wins; one that sets no rules itself locks what it inherits.

    >>> game, channel = Level("game:42", None), Level("channel:9", ())
    >>> guild = Level("guild:1", (Rule(),))
    >>> resolve_rules([game, channel, guild])
    Resolved(rules=(), source='channel:9')
    >>> resolve_rules([game, channel, guild._replace(locked=True)]).source
    'guild:1'
    """
    levels = [Level(*level) for level in chain]
    first = max((n for n, level in enumerate(levels) if level.locked), default=0)
    for level in levels[first:]:
        if level.rules is not None:
            return Resolved(level.rules, level.name)
    return Resolved((), None)


class Armed(msgspec.Struct, frozen=True):
    """What becomes of one time of a rule. `run_at` is None unless it is armed."""

    rule: Rule
    time: datetime
    run_at: datetime | None
    status: Literal["armed", "skipped", "expired"]
    reason: Reason | None = None
    expires_at: datetime | None = None
    """From when on it is too late to start."""


def arm(
    rules: Iterable[Rule],
    due: datetime,
    tz: str,
    now: datetime,
    *,
    recipient_tz: str | None = None,
) -> list[Armed]:
    """Return one entry per rule and time, earliest first, for a subject put at `now`.

    A time from `now` on is armed. A past one is skipped; or, if its rule says send_now and it has
    not expired, armed at `now`: only the newest of each rule. `recipient_tz` is the zone of the
    rules that follow the recipient's wall clock; without it, they follow the subject's.

    >>> from datetime import timedelta
    >>> hour = Rule(every=timedelta(hours=1), within=timedelta(hours=3), past="send_now")
    >>> noon = datetime(2026, 5, 1, 12, tzinfo=UTC)
    >>> for armed in arm([hour], noon, "UTC", noon - timedelta(minutes=90)):
    ...     print(f"{armed.time:%H:%M}", armed.status, armed.run_at and f"{armed.run_at:%H:%M}")
    09:00 skipped None
    10:00 armed 10:30
    11:00 armed 11:00
    """
    due = check_moment(due, name="due").astimezone(UTC)
    now = check_moment(now, name="now").astimezone(UTC)
    found: list[Armed] = []
    for rule in dict.fromkeys(rules):
        zone = tz if rule.zone == "subject" or recipient_tz is None else recipient_tz
        found += _arm_rule(rule, rule_times(rule, due, zone), due, now)
    return sorted(found, key=lambda armed: armed.time)


def _arm_rule(
    rule: Rule, times: Sequence[datetime], due: datetime, now: datetime
) -> Iterator[Armed]:
    newest = max((time for time in times if time < now), default=None)
    for time in times:
        expires_at = rule.expires_at(time, due)
        if time >= now:
            yield Armed(rule, time, time, "armed", None, expires_at)
        elif rule.past == "skip":
            yield Armed(rule, time, None, "skipped", _past("past_skipped", time), expires_at)
        elif expires_at is not None and expires_at <= now:
            reason = _past("past_expired", time, expires_at=expires_at)
            yield Armed(rule, time, None, "expired", reason, expires_at)
        elif time != newest:
            yield Armed(rule, time, None, "skipped", _past("past_replaced", time), expires_at)
        else:
            yield Armed(rule, time, now, "armed", _past("past_sent", time), expires_at)


def _past(code: str, time: datetime, **facts: datetime) -> Reason:
    return Reason.of(code, time=time, **facts)
