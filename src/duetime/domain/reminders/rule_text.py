"""Rules as people write them: `"-1h"`, `"-1d at 09:00"`, `"every 24h within the last 3d"`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, cast

from duetime.domain.duration import format_duration, parse_duration
from duetime.domain.reminders.rule import (
    MAX_OFFSET,
    Rule,
    check_rule,
    may_come_before,
    parse_wall,
    read_moment,
)
from duetime.errors import InvalidInput

MAX_RULES = 50
_MAX_TEXT_LENGTH = 100
_OPTIONS = ("past", "expires", "urgent", "zone", "channels", "template", "escalate")
_SPAN = re.compile(r"([+-]?)((?:\d+(?:\.\d+)?(?:ms|[smhdw]))+)", re.ASCII)
_WALL = re.compile(r"(?:([+-]?)((?:\d+[dw])+) )?at (\d+:[\d:]+)", re.ASCII)
_MOMENT = re.compile(r"(?:at )?(\d{4}-?\d\d-?\d\d(?:[T ].*)?)", re.ASCII)
_REPEAT = re.compile(r"every (\S+) within the last (\S+)")


_NUMBER = re.compile(r"\d{1,9}", re.ASCII)
_MOST_MINUTES = MAX_OFFSET // timedelta(minutes=1)

RuleLike = str | int | timedelta | datetime | Mapping[str, object] | Rule
RulesLike = RuleLike | Iterable[RuleLike]


def parse_rule(value: RuleLike) -> Rule:
    """Return the rule that a text, a number, a timedelta, an aware datetime or a mapping says.

    A number, also as text, is minutes before the due time: 60 is "-1h". A mapping has one of these
    as `rule`, and any of the options:

    - `past`: "skip" (default) or "send_now", if its time is past when it is armed.
    - `expires`: a duration, "at_due" or "never". By default, what comes before the due time
      expires at_due: "in an hour" is wrong by then. What comes at the due time or later never
      expires: it stays true.
    - `urgent`: whether it ignores quiet hours.
    - `zone`: "subject" (default) or "recipient", whose wall time.
    - `channels`: their names, in the order in which they are tried; `template`: its name.
    - `escalate`: a duration. The recipients are reminded in turn, until somebody acknowledges.

    Raises `InvalidInput`.

    >>> parse_rule("-1h").offset, parse_rule("-1h").expires
    (datetime.timedelta(days=-1, seconds=82800), 'at_due')
    >>> parse_rule({"rule": "-1d at 09:00", "zone": "recipient"}).wall
    datetime.time(9, 0)
    >>> parse_rule("1h")
    Traceback (most recent call last):
        ...
    duetime.errors.InvalidInput: The rule '1h' has no sign. Write '-1h' for a time before the due \
time, or '+1h' for a time after it.
    """
    if isinstance(value, str):
        return _parse_text(value)
    if isinstance(value, Rule):
        return check_rule(value)
    given: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"rule": value}
    if "rule" not in given:
        raise InvalidInput(
            'A rule given as a mapping must contain "rule", such as {"rule": "-1h"}, got '
            f"{given!r:.80}."
        )
    times = _read_times(given.pop("rule"))
    if unknown := [name for name in given if name not in _OPTIONS]:
        raise InvalidInput(
            f"A rule has no option {unknown[0]!r:.60}. The options are: {', '.join(_OPTIONS)}."
        )
    options = {name: value for name, value in given.items() if value is not None}
    if "expires" in given:
        options["expires"] = _read_expires(given["expires"])
    elif may_come_before(Rule(**times)):
        options["expires"] = "at_due"
    if "channels" in options:
        options["channels"] = _read_channels(options["channels"])
    if "escalate" in options:
        options["escalate"] = _read_span(options["escalate"], "escalate")
    return check_rule(Rule(**times, **options))


@lru_cache(maxsize=1024)
def _parse_text(text: str) -> Rule:
    return parse_rule({"rule": text})


def write_rule(rule: Rule) -> dict[str, Any]:
    """Return a rule as `parse_rule` reads it; options that its text alone implies are left out.

    >>> write_rule(parse_rule({"rule": "-1h", "urgent": True, "expires": "at_due"}))
    {'rule': '-1h', 'urgent': True}
    """
    plain = parse_rule(rule.text)
    given = {
        name: getattr(rule, name)
        for name in _OPTIONS
        if getattr(rule, name) != getattr(plain, name)
    }
    if "expires" in given and given["expires"] != "at_due":
        span = given["expires"]
        given["expires"] = "never" if span is None else format_duration(span)
    if "escalate" in given:
        given["escalate"] = format_duration(given["escalate"])
    channels = {"channels": list(rule.channels)} if rule.channels else {}
    return {"rule": rule.text} | given | channels


def parse_rules(values: RulesLike) -> tuple[Rule, ...]:
    """Return the rules of a list, or the one that stands alone. Equal ones are one.

    Raises `InvalidInput`, also for two that are the same reminder and differ in how it is sent.

    >>> [rule.text for rule in parse_rules(["-7d", "-1h", "-60m"])]
    ['-7d', '-1h']
    """
    if isinstance(values, str | int | float | Mapping | timedelta | datetime | Rule):
        values = [values]
    if not isinstance(values, Iterable) or isinstance(cast("object", values), bytes):
        raise InvalidInput(f"Rules must be a list, such as ['-1d', '-1h'], got {values!r:.60}.")
    given = list(values)
    if len(given) > MAX_RULES:
        raise InvalidInput(
            f"A list of rules must have at most {MAX_RULES} rules, got {len(given)}."
        )
    rules: dict[str, Rule] = {}
    for rule in map(parse_rule, given):
        if rules.setdefault(rule.id, rule) != rule:
            raise InvalidInput(
                f"The rule {rule.text!r} is given twice with the same channels. Remove one, or "
                "give them different channels."
            )
    return tuple(rules.values())


def _read_times(value: Any) -> dict[str, Any]:
    if isinstance(value, timedelta):
        return {"offset": value}
    if isinstance(value, datetime):
        return {"at": read_moment(value)}
    if isinstance(value, int) and not isinstance(value, bool):
        return {"offset": _read_minutes(value)}
    if isinstance(value, float):
        raise _part_of_a_minute(value)
    if not isinstance(value, str):
        raise InvalidInput(
            "A rule must be a text such as '-1h', a whole number of minutes before the due time, a "
            f"timedelta or a datetime, got {value!r:.60}."
        )
    text = " ".join(value.split()) if len(value) < _MAX_TEXT_LENGTH else ""
    if _NUMBER.fullmatch(text):
        return {"offset": _read_minutes(int(text))}
    if found := _SPAN.fullmatch(text):
        return {"offset": _read_offset(text, *found.groups())}
    if found := _WALL.fullmatch(text):
        sign, days, wall = found.groups()
        offset = _read_offset(text, sign, days) if days else timedelta(0)
        return {"offset": offset, "wall": parse_wall(wall)}
    if found := _MOMENT.fullmatch(text):
        return {"at": _read_moment(found[1])}
    if found := _REPEAT.fullmatch(text):
        every, within = (_read_span(span, "A repeat's time") for span in found.groups())
        return {"every": every, "within": within}
    raise InvalidInput(
        f"{value!r:.60} is not a valid rule. Write '-1h' (before the due time), '+30m' (after it), "
        "'0s' (at it), '-1d at 09:00' (wall time on the day before; whole days or weeks), 'at "
        "09:00' (on the day itself), 'every 24h within the last 3d', 'at "
        "2026-05-01T09:00+02:00', or a number of minutes before the due time."
    )


def _read_minutes(number: int) -> timedelta:
    if abs(number) > _MOST_MINUTES:
        raise InvalidInput(
            "A rule that is a number is minutes before the due time, and must be at most 10 years: "
            f"write {_MOST_MINUTES} or less."
        )
    if number < 0:
        raise InvalidInput(
            f"A number is minutes before the due time and must not be negative, got {number}. "
            f"For a time after the due time, write '+{-number}m'."
        )
    return -timedelta(minutes=number)


def _part_of_a_minute(number: float) -> InvalidInput:
    message = (
        "A rule that is a number must be a whole number of minutes before the due time, got "
        f"{number!r}."
    )
    # Neither NaN nor infinity compares like this.
    if 0 < number <= _MOST_MINUTES and (span := timedelta(minutes=number)):
        message += f" Write {'-' + format_duration(span)!r}."
    return InvalidInput(message)


def _read_span(value: Any, name: str) -> timedelta:
    return parse_duration(value, name=name, most=MAX_OFFSET)


def _read_offset(text: str, sign: str, span: str) -> timedelta:
    offset = _read_span(span, "A rule's offset")
    if offset and not sign:
        raise InvalidInput(
            f"The rule {text!r} has no sign. Write '-{text}' for a time before the due time, or "
            f"'+{text}' for a time after it."
        )
    return -offset if sign == "-" else offset


def _read_moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidInput(
            f"{text!r:.60} is not a time. Write it as '2026-05-01T09:00+02:00'."
        ) from None
    return read_moment(moment)


def _read_expires(value: Any) -> Any:
    if value is None or value == "never":
        return None
    return value if value == "at_due" else _read_span(value, "expires")


def _read_channels(value: Any) -> tuple[Any, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple):
        raise InvalidInput(f"channels must be a list of names, got {value!r:.60}.")
    return tuple(value)
