"""Rules: when a subject's reminder is due. Plain data, which SQL can evaluate too.

A rule has one of four shapes, here as `rule_text` reads them:

- `-1h`, `+30m`, `0s`: before, after or at the due time, in elapsed time. `-1d` is 24 hours before,
  also if clocks change in between.
- `-1d at 09:00`, `at 09:00`: a wall time on the local day so many days from the due time's local
  day. If clocks go forward over it, the first moment after the gap; if they show it twice, the
  first time.
- `every 24h within the last 3d`: 3 d before the due time, then every 24 h, as long as that is
  before the due time. So `every 24h within the last 24h` is one time, 24 h before.
- `at 2026-05-01T09:00+02:00`: a fixed moment, whatever the due time.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, time, timedelta
from functools import cached_property, lru_cache
from hashlib import blake2b
from typing import Any, Literal, get_args

import msgspec

from duetime.domain.checks import check_moment, check_name
from duetime.domain.duration import format_duration, format_time
from duetime.domain.schedules.cron import parse_zone, to_instant, to_wall
from duetime.errors import InvalidInput

MAX_TIMES = 1000
MAX_CHANNELS = 20
MAX_OFFSET = timedelta(days=3653)
MIN_REPEAT = timedelta(seconds=1)
_MAX_JSON_LENGTH = 20_000
_NONE = timedelta(0)
_DAY = timedelta(days=1)
_MICROSECOND = timedelta(microseconds=1)

Past = Literal["skip", "send_now"]
Whose = Literal["subject", "recipient"]


class Rule(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """When a subject's reminder is due. A value: equal if it says the same. Made by `parse_rule`.

    `past`: what to do if its time is past when it is armed. `expires` bounds its start: so long
    after its time, `"at_due"`, or None for never. `zone`: whose wall time. `urgent` ignores quiet
    hours. `escalate`: how long to wait for an acknowledgement before the next recipient is
    reminded; None reminds all of them at once.
    """

    offset: timedelta = _NONE
    wall: time | None = None
    at: datetime | None = None
    every: timedelta | None = None
    within: timedelta | None = None
    past: Past = "skip"
    expires: timedelta | Literal["at_due"] | None = None
    urgent: bool = False
    zone: Whose = "subject"
    channels: tuple[str, ...] | None = None
    template: str | None = None
    escalate: timedelta | None = None

    # These are computed once: thousands of subjects share a rule.

    @cached_property
    def id(self) -> str:
        """What makes it differ from a subject's other rules: times, whose wall clock, channels.

        The other fields say how it is sent: to change them makes no other reminder of it. The id
        is part of the reminder's key, so no version may make it another way. Safe in a URL.

        >>> Rule(offset=timedelta(minutes=-90)).id, Rule(wall=time(9), zone="recipient").id
        ('1h30m-before', 'on-day-at-0900~recipient')
        """
        parts = [_times_id(self)]
        if self.zone != "subject":
            parts.append(self.zone)
        if self.channels is not None:
            names = "\0".join(sorted(self.channels)).encode()
            parts.append(blake2b(names, digest_size=4).hexdigest())
        return "~".join(parts)

    @cached_property
    def text(self) -> str:
        """Its times, as `parse_rule` reads them back.

        >>> Rule(offset=timedelta(days=-1), wall=time(9)).text
        '-1d at 09:00'
        """
        if self.at is not None:
            return f"at {format_time(self.at)}"
        if self.every is not None and self.within is not None:
            every, within = format_duration(self.every), format_duration(self.within)
            return f"every {every} within the last {within}"
        sign = "-" if self.offset < _NONE else "+"
        span = sign + format_duration(abs(self.offset)) if self.offset else ""
        if self.wall is None:
            return span or "0s"
        return f"{span} at {format_wall(self.wall)}".strip()

    def expires_at(self, moment: datetime, due: datetime) -> datetime | None:
        """Return from when on it is too late to start the reminder whose time is `moment`.

        What does not come before the due time (a wall time later that day) never expires at_due.
        """
        if isinstance(self.expires, timedelta):
            return moment + self.expires
        return due if self.expires == "at_due" and moment < due else None

    @cached_property
    def encoded(self) -> msgspec.Raw:
        """What `to_json` returns, as JSON text."""
        return msgspec.Raw(msgspec.json.encode(self.to_json()))

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` and SQL read. Equal rules give equal JSON."""
        wall = None if self.wall is None else datetime.combine(_SOME_DAY, self.wall) - _SOME_DAY
        return {
            "id": self.id,
            "offset_us": _us(self.offset),
            "wall_us": _us(wall),
            "at": None if self.at is None else format_time(self.at),
            "every_us": _us(self.every),
            "within_us": _us(self.within),
            "past": self.past,
            "expires_us": _us(None if self.expires == "at_due" else self.expires),
            "expires_at_due": self.expires == "at_due",
            "urgent": self.urgent,
            "zone": self.zone,
            "channels": None if self.channels is None else list(self.channels),
            "template": self.template,
            "escalate_us": _us(self.escalate),
        }

    @classmethod
    def from_json(cls, value: Any) -> Rule:
        """Return the rule that `to_json` gave, as a mapping or as JSON text.

        Anyone may have written it: raises `InvalidInput`.

        >>> Rule.from_json(Rule(offset=timedelta(hours=-1)).to_json()).text
        '-1h'
        """
        try:
            text = value if isinstance(value, str | bytes) else msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError):
            raise InvalidInput(f"A stored rule must be a JSON object, got {value!r:.60}.") from None
        return _stored(text)


def rule_times(rule: Rule, due: datetime, tz: str) -> list[datetime]:
    """Return its times (UTC, ascending) for a subject due at `due`. `tz` is the wall time's zone.

    >>> due = datetime(2026, 3, 8, 22, tzinfo=UTC)
    >>> rule_times(Rule(wall=time(2, 30)), due, "America/New_York")[0].isoformat()
    '2026-03-08T07:00:00+00:00'
    >>> repeat = Rule(every=timedelta(days=1), within=timedelta(days=3))
    >>> [at.day for at in rule_times(repeat, due, "UTC")]
    [5, 6, 7]
    """
    due = check_moment(due, name="due").astimezone(UTC)
    zone = parse_zone(tz)
    if rule.at is not None:
        return [rule.at.astimezone(UTC)]
    if rule.wall is not None:
        day = to_wall(due, zone).date() + rule.offset
        return [to_instant(datetime.combine(day, rule.wall), zone)]
    if rule.every is not None and rule.within is not None:
        first, every = due - rule.within, rule.every
        return [first + n * every for n in range(_count(every, rule.within))]
    return [due + rule.offset]


def check_rule(rule: Rule) -> Rule:
    """Return `rule` if what it says can be, or raise `InvalidInput`."""
    _check_times(rule)
    for name, choices in (("past", get_args(Past)), ("zone", get_args(Whose))):
        if getattr(rule, name) not in choices:
            raise InvalidInput(f"{name} must be one of {choices}, got {getattr(rule, name)!r:.60}.")
    if rule.zone == "recipient" and rule.wall is None:
        raise InvalidInput(
            f"The rule {rule.text!r} has no wall time, so its time is the same in every zone. "
            "Leave out zone, or add a wall time: '-1d at 09:00'."
        )
    if rule.expires == "at_due" and not may_come_before(rule):
        raise InvalidInput(
            f"The rule {rule.text!r} cannot have expires='at_due', because its time is not before "
            "the due time. Set expires to a duration such as '1d', or to 'never'."
        )
    if isinstance(rule.expires, timedelta) and not _NONE < rule.expires <= MAX_OFFSET:
        raise InvalidInput(
            f"expires must be greater than 0s and at most 10 years, got {rule.expires}."
        )
    if not isinstance(rule.urgent, bool):
        raise InvalidInput(f"urgent must be True or False, got {rule.urgent!r:.60}.")
    if rule.template is not None:
        check_name(rule.template, what="template")
    if rule.escalate is not None:
        _check_escalate(rule)
    if rule.channels is not None:
        _check_channels(rule.channels)
    return rule


def may_come_before(rule: Rule) -> bool:
    """Whether a time of it can lie before the due time. (A wall time can lie after it, too.)"""
    if rule.at is not None or rule.every is not None:
        return True
    return rule.offset < _NONE or (rule.wall is not None and not rule.offset)


def parse_wall(text: str) -> time:
    """Return a time of day, written as `9:00`, `09:00` or `09:00:30`."""
    found = re.fullmatch(r"(\d{1,2}):(\d\d)(?::(\d\d))?", text, re.ASCII)
    hour, minute, second = (int(part or 0) for part in found.groups()) if found else (99, 0, 0)
    if hour > 23 or minute > 59 or second > 59:
        raise InvalidInput(
            f"{text[:40]!r} is not a time of day. Write 00:00 to 23:59, such as '09:00'."
        )
    return time(hour, minute, second)


def format_wall(wall: time) -> str:
    """Return what `parse_wall` reads back: `09:00`, with its seconds if it has any."""
    return wall.isoformat("seconds" if wall.second else "minutes")


def read_moment(value: datetime, *, name: str = "at") -> datetime:
    """Return a fixed moment in UTC, if every database can store it."""
    return check_moment(check_moment(value, name=name).astimezone(UTC), name=name)


def _times_id(rule: Rule) -> str:
    if rule.at is not None:
        return "at-" + format_time(rule.at).replace("-", "").replace(":", "")
    if rule.every is not None and rule.within is not None:
        return f"every-{format_duration(rule.every)}-in-last-{format_duration(rule.within)}"
    side = "before" if rule.offset < _NONE else "after"
    span = f"{format_duration(abs(rule.offset))}-{side}" if rule.offset else ""
    if rule.wall is None:
        return span or "at-due"
    return f"{span or 'on-day'}-at-{format_wall(rule.wall).replace(':', '')}"


def _check_times(rule: Rule) -> None:
    every, within = rule.every, rule.within
    repeats = every is not None or within is not None
    plain = rule.wall is None and bool(rule.offset)
    if (rule.at is not None) + (rule.wall is not None) + repeats + plain > 1:
        raise InvalidInput(
            "A rule must have exactly one kind of time: an offset, days with a wall time, a "
            "repeat, or a fixed time."
        )
    if abs(rule.offset) > MAX_OFFSET:
        raise InvalidInput(f"The offset of a rule must be at most 10 years, got {rule.text!r}.")
    if rule.wall is not None and (rule.offset % _DAY or rule.wall.microsecond or rule.wall.tzinfo):
        raise InvalidInput(
            "A wall time requires an offset of whole days or weeks, and must have whole seconds "
            f"and no zone, got {rule.offset} at {rule.wall}."
        )
    if rule.at is not None:
        read_moment(rule.at)
    if not repeats:
        return
    if every is None or within is None or every < MIN_REPEAT:
        raise InvalidInput(
            f"A repeat requires within, and every must be at least 1s, got every {every}."
        )
    if every > MAX_OFFSET:
        raise InvalidInput(f"every must be at most 10 years, got {every}.")
    if not _NONE < within <= MAX_OFFSET:
        raise InvalidInput(f"within must be greater than 0s and at most 10 years, got {within}.")
    if (count := _count(every, within)) > MAX_TIMES:
        raise InvalidInput(
            f"The rule {rule.text!r} has {count:,} times, and the limit is {MAX_TIMES:,}. Repeat "
            "less often, or within a shorter time."
        )


def _check_escalate(rule: Rule) -> None:
    escalate = rule.escalate
    if not isinstance(escalate, timedelta) or not _NONE < escalate <= MAX_OFFSET:
        raise InvalidInput(
            f"escalate must be greater than 0s and at most 10 years, got {escalate!r:.60}."
        )
    if rule.zone == "recipient":
        raise InvalidInput(
            f"The rule {rule.text!r} cannot have both escalate and zone: a rule that escalates has "
            "one time for all recipients. Leave out one of them."
        )


def _check_channels(channels: tuple[str, ...]) -> None:
    if not 1 <= len(channels) <= MAX_CHANNELS:
        raise InvalidInput(
            f"A rule must have 1 to {MAX_CHANNELS} channels, got {len(channels)}. Leave "
            "out channels to use those of the recipient."
        )
    for channel in channels:
        check_name(channel, what="channel")
    if len(set(channels)) < len(channels):
        raise InvalidInput(
            f"A rule cannot have the same channel twice, got {list(channels)!r:.200}."
        )


def _count(every: timedelta, within: timedelta) -> int:
    """How many times lie from `within` before the due time up to, but not at, the due time."""
    return -(-within // every)


_SOME_DAY = datetime(2024, 1, 1)  # noqa: DTZ001


class _Stored(msgspec.Struct, forbid_unknown_fields=True):
    id: str
    offset_us: int
    wall_us: int | None
    at: datetime | None
    every_us: int | None
    within_us: int | None
    past: Past
    expires_us: int | None
    expires_at_due: bool
    urgent: bool
    zone: Whose
    channels: tuple[str, ...] | None
    template: str | None
    escalate_us: int | None = None


@lru_cache(maxsize=4096)
def _stored(text: str | bytes) -> Rule:
    if len(text) > _MAX_JSON_LENGTH:
        raise InvalidInput(f"The JSON of a rule must have at most {_MAX_JSON_LENGTH:,} characters.")
    try:
        stored = msgspec.json.decode(text, type=_Stored)
        rule = check_rule(_rule(stored))
    except (msgspec.DecodeError, UnicodeError, OverflowError, RecursionError) as error:
        raise InvalidInput(f"The stored rule cannot be read: {error}.") from None
    if rule.id != stored.id:
        raise InvalidInput(f"The stored rule's id is {stored.id[:60]!r}; it must be {rule.id!r}.")
    return rule


def _rule(stored: _Stored) -> Rule:
    if stored.expires_at_due and stored.expires_us is not None:
        raise InvalidInput("A rule cannot expire both after a duration and at_due.")
    wall = _span(stored.wall_us)
    if wall is not None and not _NONE <= wall < _DAY:
        raise InvalidInput(f"wall_us must be within a day, got {stored.wall_us}.")
    return Rule(
        offset=timedelta(microseconds=stored.offset_us),
        wall=None if wall is None else (_SOME_DAY + wall).time(),
        at=None if stored.at is None else read_moment(stored.at),
        every=_span(stored.every_us),
        within=_span(stored.within_us),
        past=stored.past,
        expires="at_due" if stored.expires_at_due else _span(stored.expires_us),
        urgent=stored.urgent,
        zone=stored.zone,
        channels=stored.channels,
        template=stored.template,
        escalate=_span(stored.escalate_us),
    )


def _us(span: timedelta | None) -> int | None:
    return None if span is None else span // _MICROSECOND


def _span(microseconds: int | None) -> timedelta | None:
    return None if microseconds is None else timedelta(microseconds=microseconds)
