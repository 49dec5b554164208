"""Subjects that are due again and again: their occurrences, and what is different for single ones.

The times are a timetable's (cron, RRULE, intervals, single moments; on the subject's clock). An
exception is kept under its occurrence's original time: `"skip"` leaves it out, `"done"` ends it,
a moment moves it there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from heapq import merge
from itertools import islice, takewhile
from typing import Any, Literal, NamedTuple

import msgspec

from duetime.domain import effort
from duetime.domain.duration import format_time
from duetime.domain.reasons import Reason
from duetime.domain.reminders.rule import read_moment
from duetime.domain.schedules.timetable import (
    EPOCH,
    Interval,
    Once,
    RuleTimes,
    Spec,
    Timetable,
    read_aware,
    timetable,
)
from duetime.errors import InvalidInput

MAX_EXCEPTIONS = 2000
_KEPT = timedelta(days=366)
_PACE = 60
_MAX_JSON_LENGTH = 500_000
_MAX_STEPS = 4_000_000
_MOMENT = timedelta(microseconds=1)
_OPTIONS = ("start", "until", "exclude", "exceptions")

SKIPPED = Reason("occurrence_skipped")
COMPLETED = Reason("occurrence_completed")

OccurrenceChange = datetime | Literal["skip", "done"]


class Occurrence(NamedTuple):
    """One time at which a subject is due, and the time that it had before it was moved."""

    due: datetime
    original: datetime


class Recurrence(msgspec.Struct, frozen=True):
    """When a subject is due. A value: equal if it says the same. Made by `parse_repeats`."""

    timetable: Timetable
    exceptions: dict[datetime, OccurrenceChange] | None = None
    """None: those that are stored stay."""

    def occurrences(self, since: datetime) -> Iterator[Occurrence]:
        """Yield what is due at `since` or later, in order.

        >>> from datetime import UTC
        >>> standup = parse_repeats(
        ...     {"cron": "0 9 * * 1-5", "exceptions": {"2026-03-03T09:00Z": "2026-03-04T12:00Z"}}
        ... )
        >>> for due, original in islice(standup.occurrences(datetime(2026, 3, 2, tzinfo=UTC)), 3):
        ...     print(f"{due:%a %H:%M}, of {original:%a}")
        Mon 09:00, of Mon
        Wed 09:00, of Wed
        Wed 12:00, of Tue
        """
        different = self.exceptions or {}
        usual = (
            Occurrence(at, at) for at in self.timetable.runs(since - _MOMENT) if at not in different
        )
        moved = sorted(
            Occurrence(due, original)
            for original, due in different.items()
            if isinstance(due, datetime) and due >= since and self.has(original)
        )
        return merge(usual, moved) if moved else usual

    def first(self, since: datetime, n: int) -> list[Occurrence]:
        """Return the first `n` that are due at `since` or later; raise `InvalidInput` if they come
        too rarely to be found in a second or two."""
        with effort.limited(
            _MAX_STEPS,
            f"'{self.describe()}' is due too rarely to compute {n} occurrences. Request fewer.",
        ):
            return list(islice(self.occurrences(since), n))

    def has(self, original: datetime) -> bool:
        """Whether the timetable has an occurrence then, whatever its exception says."""
        tick = next(self.timetable.ticks(original - _MOMENT), None)
        return tick is not None and tick.at == original and tick.excluded is None

    def is_due(self, moment: datetime) -> bool:
        """Whether an occurrence is due then."""
        one = next(self.occurrences(moment), None)
        return one is not None and one.due == moment

    def find(self, occurrence: datetime) -> datetime:
        """Return the original time of an occurrence, given that or the time that it moved to.

        Raises `InvalidInput`, with the occurrences that are near.
        """
        moment = _moment(occurrence, "occurrence")
        if self.has(moment):
            return moment
        for original, due in (self.exceptions or {}).items():
            if due == moment and self.has(original):
                return original
        near = [format_time(due) for due, _ in islice(self.occurrences(moment), 2)]
        raise InvalidInput(
            f"There is no occurrence at {format_time(moment)}. "
            + (f"The next ones are {' and '.join(near)}." if near else "It ends before.")
        )

    def changed(
        self, original: datetime, exception: OccurrenceChange | None, now: datetime
    ) -> Recurrence:
        """Return it with another exception for one occurrence; None: with none.

        Those of more than a year ago are forgotten, and the oldest past ones if there are too many.
        """
        kept = {
            at: value
            for at, value in (self.exceptions or {}).items()
            if at != original and _latest(at, value) > now - _KEPT
        }
        if exception is not None:
            kept[original] = exception
        for at in sorted(kept)[: max(len(kept) - MAX_EXCEPTIONS, 0)]:
            if _latest(at, kept[at]) < now:
                del kept[at]
        return Recurrence(self.timetable, _check_exceptions(kept))

    def keeping(self, stored: Recurrence | None) -> Recurrence:
        """Return it with the exceptions of what was stored: all if it says nothing of them, else
        those occurrences that are done, unless it moves them."""
        before = {} if stored is None else stored.exceptions or {}
        if self.exceptions is None:
            return Recurrence(self.timetable, before)
        kept = dict(self.exceptions)
        for at, value in before.items():
            if value == "done" and kept.get(at, "skip") == "skip":
                kept[at] = "done"
        return Recurrence(self.timetable, _check_exceptions(kept))

    def why_not(self, due: datetime) -> Reason:
        """Say why an occurrence that was due then no longer is."""
        match (self.exceptions or {}).get(due):
            case None:
                return Reason("occurrence_gone")
            case exception:
                return explain_exception(exception)

    def to_json(self) -> dict[str, Any]:
        """Return what `from_json` reads, without the zone: that is the subject's."""
        value = self.timetable.to_json()
        del value["tz"]
        if value.pop("end", None) is not None:
            assert self.timetable.end is not None
            value["until"] = format_time(self.timetable.end - _MOMENT)
        if self.exceptions:
            value["exceptions"] = {
                format_time(at): format_time(one) if isinstance(one, datetime) else one
                for at, one in sorted(self.exceptions.items())
            }
        return value

    @classmethod
    def from_json(cls, text: str, tz: str) -> Recurrence:
        """Return what `to_json` gave. Anyone may have written it: raises `InvalidInput`."""
        return _stored(text, tz)

    def describe(self) -> str:
        """Return one plain phrase.

        >>> parse_repeats("0 9 * * 1-5", "Europe/Berlin").describe()
        'cron 0 9 * * 1-5 (Europe/Berlin)'
        """
        end, count = self.timetable.end, len(self.exceptions or ())
        phrase = msgspec.structs.replace(self.timetable, end=None).describe()
        phrase += f", until {format_time(end - _MOMENT)}" if end else ""
        return phrase + (f", with {count} exception{'s'[: count > 1]}" if count else "")


RepeatsLike = Spec | Sequence[Spec] | Recurrence


def parse_repeats(value: RepeatsLike, tz: str = "UTC") -> Recurrence:
    """Return the recurrence that a spec, a list of specs or a mapping says; see `timetable`.

    A mapping has `cron`, `rrule`, `every` or `specs` (a list), and any of: `start`; `until`, which
    may be the last occurrence; `exclude` (local dates and cron masks); `exceptions`, by the time of
    the occurrence: `"skip"` or None, `"done"`, or the moment that it moves to. A list of moments
    skips them. Raises `InvalidInput`.

    >>> parse_repeats({"rrule": "FREQ=DAILY", "start": "2026-03-01T09:00Z"}).describe()
    'rrule FREQ=DAILY (UTC), starting 2026-03-01T09:00:00Z'
    """
    if isinstance(value, Recurrence):
        if value.timetable.tz != tz:
            raise InvalidInput(
                f"The recurrence has the time zone {value.timetable.tz}, but the subject has {tz}. "
                "Use the same one for both."
            )
        return value
    given: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"specs": value}
    options = {name: given.pop(name, None) for name in _OPTIONS}
    if not given:
        raise InvalidInput(
            "A recurrence must have one of cron, rrule, every or specs (a list of these), such as "
            f"{{'cron': '0 9 * * 1-5'}}, got {value!r:.60}."
        )
    specs: Any = [given]
    if "specs" in given:
        specs = given.pop("specs")
        if given:
            raise InvalidInput(
                f"A recurrence with specs has no option {next(iter(given))!r:.60}. The options "
                f"are: {', '.join(_OPTIONS)}."
            )
    if isinstance(specs, str | Mapping | timedelta) or not isinstance(specs, Iterable):
        specs = [specs]
    start, until = (
        None if options[name] is None else _moment(options[name], name)
        for name in ("start", "until")
    )
    if start is not None and start.microsecond:
        raise InvalidInput(f"A recurrence must start at a whole second, got {format_time(start)}.")
    if start is not None and until is not None and until < start:
        raise InvalidInput(
            f"A recurrence cannot end before it starts: until {format_time(until)}, start "
            f"{format_time(start)}."
        )
    made = timetable(
        *specs,
        tz=tz,
        exclude=options["exclude"] or (),
        start=start,
        end=None if until is None else until + _MOMENT,
    )
    if len(made.specs) == 1 and isinstance(made.specs[0], Once):
        raise InvalidInput("A single time does not repeat. Use due= instead of repeats=.")
    _check_pace(made)
    exceptions = options["exceptions"]
    return Recurrence(made, None if exceptions is None else _read_exceptions(exceptions))


def explain_exception(exception: OccurrenceChange) -> Reason:
    """Say what became of an occurrence."""
    if isinstance(exception, datetime):
        return Reason.of("occurrence_moved", to=exception)
    return SKIPPED if exception == "skip" else COMPLETED


def _check_pace(made: Timetable) -> None:
    starts = [s.start for s in made.specs if isinstance(s, Interval | RuleTimes) and s.start]
    first = made.start or min(starts, default=EPOCH)
    ticks = (tick.at for tick in made.ticks(first - _MOMENT))
    hour = next(ticks, EPOCH) + timedelta(minutes=_PACE)
    # More than one a minute; most are recognised by their second.
    if len(list(takewhile(hour.__gt__, islice(ticks, _PACE)))) == _PACE:
        raise InvalidInput(
            f"'{made.describe()}' repeats too often: a subject can be due at most once a minute. "
            "To run a task more often, use a schedule."
        )


def _read_exceptions(given: Any) -> dict[datetime, OccurrenceChange]:
    if not isinstance(given, Mapping):
        if isinstance(given, str | bytes) or not isinstance(given, Iterable):
            raise InvalidInput(
                "exceptions must be a mapping such as {'2026-03-02T09:00Z': 'skip'}, got "
                f"{given!r:.60}."
            )
        given = dict.fromkeys(given)
    read: dict[datetime, OccurrenceChange] = {}
    for at, value in islice(given.items(), MAX_EXCEPTIONS + 1):
        read[_moment(at, "An exception's occurrence")] = _read_exception(value)
    return _check_exceptions(read)


def _read_exception(value: Any) -> OccurrenceChange:
    if value in (None, "skip"):
        return "skip"
    return "done" if value == "done" else _moment(value, "An exception ('skip', 'done' or a time)")


def _check_exceptions(
    exceptions: dict[datetime, OccurrenceChange],
) -> dict[datetime, OccurrenceChange]:
    if len(exceptions) > MAX_EXCEPTIONS:
        raise InvalidInput(f"A subject can have at most {MAX_EXCEPTIONS:,} exceptions.")
    return exceptions


def _latest(at: datetime, exception: OccurrenceChange) -> datetime:
    return max(at, exception) if isinstance(exception, datetime) else at


def _moment(value: Any, name: str) -> datetime:
    return read_moment(read_aware(value, name), name=name)


@lru_cache(maxsize=4096)
def _stored(text: str, tz: str) -> Recurrence:
    if len(text) > _MAX_JSON_LENGTH:
        raise InvalidInput(
            f"The JSON of a recurrence must have at most {_MAX_JSON_LENGTH} characters."
        )
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"The stored recurrence is not JSON: {error}.") from None
    if not isinstance(value, dict) or not isinstance(value.get("specs"), list):
        raise InvalidInput('A recurrence must be a JSON object such as {"specs": ["0 9 * * *"]}.')
    read = parse_repeats(value, tz)
    return Recurrence(read.timetable, read.exceptions or {})
