"""Recipients: how and when each is to be reached. Plain values, and how people write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.checks import check_name
from duetime.domain.reminders.quiet import Quiet, parse_quiet
from duetime.domain.reminders.rule_text import parse_rule
from duetime.domain.schedules.cron import parse_zone
from duetime.errors import InvalidInput

MAX_CHANNELS = 20
MAX_MUTED = 1000
MAX_PER_HOUR = 1000
_MAX_ADDRESS_LENGTH = 2000
_KINDS = ("scope", "subject", "channel", "rule")


class Route(msgspec.Struct, frozen=True):
    """A way to a recipient: the channel, and where it reaches them there."""

    channel: str
    address: str | None = None
    """None: the recipient's own reference."""


class Disabled(msgspec.Struct, frozen=True):
    """An address that said that it wants nothing more. It is not tried until put again."""

    channel: str
    address: str
    reason: str
    at: datetime


class Recipient(msgspec.Struct, frozen=True, kw_only=True):
    """Who is reminded. What is not set is as for one who was never put."""

    ref: str
    tz: str | None = None
    """Their clock; None: the subject's."""
    channels: tuple[Route, ...] = ()
    """In the order in which they are tried; none: all that the app has, at the reference."""
    quiet: str | None = None
    """The hours in which nothing is sent, such as 22:00-07:00, on their clock."""
    muted: tuple[str, ...] = ()
    max_per_hour: int | None = None
    disabled: tuple[Disabled, ...] = ()

    def address(self, channel: str) -> str | None:
        """Where a channel reaches them; None if it does not.

        >>> Recipient(ref="ann", channels=(Route("email", "ann@example.org"),)).address("email")
        'ann@example.org'
        """
        for route in self.channels:
            if route.channel == channel:
                return route.address or self.ref
        return None

    def quiet_hours(self, tz: str) -> Quiet | None:
        """Their quiet hours, on their own clock, else on that of `tz`."""
        return None if self.quiet is None else parse_quiet(self.quiet, self.tz or tz)


ChannelsLike = Mapping[str, str | None] | Iterable[str | tuple[str, str | None] | Route]
MutedLike = bool | str | Iterable[str]


def make_recipient(
    ref: str,
    *,
    tz: str | None = None,
    channels: ChannelsLike | None = None,
    quiet: str | None = None,
    muted: MutedLike | None = None,
    max_per_hour: int | None = None,
) -> Recipient:
    """Return a recipient, checked, or raise `InvalidInput`.

    >>> ann = make_recipient("ann", channels={"push": "t-1", "sms": "+1"}, quiet="22:00-7:00")
    >>> ann.quiet, ann.address("push"), ann.address("call")
    ('22:00-07:00', 't-1', None)
    """
    if max_per_hour is not None and (
        not isinstance(max_per_hour, int)
        or isinstance(max_per_hour, bool)
        or not 1 <= max_per_hour <= MAX_PER_HOUR
    ):
        raise InvalidInput(
            f"max_per_hour must be 1 to {MAX_PER_HOUR}, got {max_per_hour!r:.40}. Leave "
            "it out for no limit. To send nothing, mute the recipient."
        )
    zone = None if tz is None else parse_zone(tz).key
    return Recipient(
        ref=check_name(ref, what="recipient"),
        tz=zone,
        channels=parse_channels(channels),
        quiet=None if quiet is None else parse_quiet(quiet, zone or "UTC").text,
        muted=parse_muted(muted),
        max_per_hour=max_per_hour,
    )


def parse_channels(value: Any) -> tuple[Route, ...]:
    """Return the routes that a mapping, or a list of names and of pairs, says, in its order.

    >>> parse_channels({"push": "token-1", "email": "ann@example.org"})[1].address
    'ann@example.org'
    >>> parse_channels(["push", ("email", "ann@example.org")])[0]
    Route(channel='push', address=None)
    """
    if value is None:
        return ()
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise InvalidInput(
            'channels must be a mapping such as {"email": "ann@example.org"}, or a list of such '
            f"pairs, got {value!r:.60}."
        )
    pairs = value.items() if isinstance(value, Mapping) else [_pair(item) for item in value]
    routes = tuple(Route(check_name(name, what="channel"), _address(to)) for name, to in pairs)
    if len(routes) > MAX_CHANNELS:
        raise InvalidInput(
            f"A recipient can have at most {MAX_CHANNELS} channels, got {len(routes)}."
        )
    names = [route.channel for route in routes]
    if len(set(names)) < len(names):
        raise InvalidInput(f"A recipient cannot have the same channel twice, got {names!r:.200}.")
    return routes


def parse_muted(value: Any) -> tuple[str, ...]:
    """Return what is muted: `True` or "all", or any of scope:, subject:, channel:, rule:.

    >>> parse_muted(["scope:guild:1", "rule:-60m"]), parse_muted(True)
    (('scope:guild:1', 'rule:-1h'), ('all',))
    """
    if value is None or value is False:
        return ()
    if value is True:
        return ("all",)
    if isinstance(value, str):
        value = [value]
    if not isinstance(value, Iterable) or isinstance(value, bytes | Mapping):
        raise InvalidInput(f"muted must be a list such as ['scope:guild:1'], got {value!r:.60}.")
    found = tuple(dict.fromkeys(_mute(item) for item in value))
    if len(found) > MAX_MUTED:
        raise InvalidInput(f"A recipient can mute at most {MAX_MUTED} things, got {len(found)}.")
    return found


def _mute(value: Any) -> str:
    kind, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if value == "all":
        return "all"
    if not colon or kind not in _KINDS:
        raise InvalidInput(
            f"{value!r:.60} cannot be muted. Write 'all', 'scope:guild:1' (with all inside it), "
            "'subject:game:42', 'channel:email' or 'rule:-7d'."
        )
    return f"{kind}:{parse_rule(name).text if kind == 'rule' else check_name(name, what=kind)}"


def _pair(item: Any) -> tuple[Any, Any]:
    if isinstance(item, str):
        return item, None
    if isinstance(item, Route):
        return item.channel, item.address
    if isinstance(item, list | tuple) and len(item) == 2:
        return item[0], item[1]
    raise InvalidInput(
        f"A channel must be a name, or a pair of name and address, got {item!r:.60}."
    )


def _address(value: Any) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or not 1 <= len(value) <= _MAX_ADDRESS_LENGTH or "\x00" in value:
        raise InvalidInput(
            f"An address must be a string of 1 to {_MAX_ADDRESS_LENGTH:,} characters, got "
            f"{value!r:.60}."
        )
    return value
