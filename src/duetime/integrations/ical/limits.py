"""What a file may hold: checked on its lines, before anything is built from them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from duetime.errors import InvalidInput

MAX_BYTES = 10 * 1024 * 1024
MAX_EVENTS = 20_000
MAX_ALARMS = 200_000
DEEPEST = 8
_FOLD = re.compile(r"(?:\r\n|\n|\r)[ \t]")
_LINE_END = re.compile(r"\r\n|\n|\r")  # Not splitlines: text may hold other line separators.


def safe_text(data: bytes | str) -> str:
    """Return the file's text, unfolded and without its time zones; raise `InvalidInput`.

    A file's own definition of a zone is not used: its rules can be made to take for ever, and the
    zone's name says enough.
    """
    text = _decode(data)
    if "BEGIN:VCALENDAR" not in text[:100_000].upper():
        raise InvalidInput("This is not an iCalendar file: it has no BEGIN:VCALENDAR.")
    return "\r\n".join(_kept(_LINE_END.split(_FOLD.sub("", text))))


def _decode(data: bytes | str) -> str:
    if len(data) > MAX_BYTES:
        raise InvalidInput(
            f"An iCalendar file must have at most {MAX_BYTES // 1024**2} MB, got "
            f"{len(data) / 1024**2:.0f} MB. Export a shorter period, or fewer calendars."
        )
    if isinstance(data, str):
        return data.removeprefix("\ufeff")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput(
            f"The file is not valid UTF-8: byte {error.start} cannot be decoded. Convert it first."
        ) from None


def _kept(lines: list[str]) -> Iterator[str]:
    depth = events = alarms = 0
    zone = 0  # The depth at which a time zone began.
    for line in lines:
        name = line.strip().upper()
        if name.startswith("BEGIN:"):
            depth += 1
            events += name == "BEGIN:VEVENT"
            alarms += name == "BEGIN:VALARM"
            _check(depth, events, alarms)
            if name == "BEGIN:VTIMEZONE" and not zone:
                zone = depth
        if not zone and line.strip():
            yield line
        if name.startswith("END:"):
            if depth == zone:
                zone = 0
            depth -= 1


def _check(depth: int, events: int, alarms: int) -> None:
    for count, most, what in (
        (depth, DEEPEST, "levels of components"),
        (events, MAX_EVENTS, "events"),
        (alarms, MAX_ALARMS, "alarms"),
    ):
        if count > most:
            raise InvalidInput(f"An iCalendar file must have at most {most:,} {what}.")
