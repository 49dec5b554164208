"""Which zone a file's time is in."""

from __future__ import annotations

from datetime import UTC, date, datetime
from typing import Any

from duetime.domain.schedules.cron import parse_zone, to_instant
from duetime.errors import InvalidInput
from duetime.integrations.ical.library import icalendar


def zone_name(tzid: str) -> str:
    """Return the IANA name of a file's zone: itself, Outlook's, or the end of a path."""
    icalendar()
    from icalendar.timezone.windows_to_olson import WINDOWS_TO_OLSON

    name = tzid.strip().strip('"')
    parts = name.split("/")
    for one in (WINDOWS_TO_OLSON.get(name), name, "/".join(parts[-3:]), "/".join(parts[-2:])):
        try:
            if one:
                return parse_zone(one).key
        except InvalidInput:
            continue
    raise InvalidInput(f"its time zone {tzid[:60]!r} is unknown; use an IANA name in the file")


def zone_of(prop: Any, default: str) -> str:
    """Return the zone of a property's time: its TZID, UTC, or the calendar's for a floating one."""
    if tzid := prop.params.get("TZID"):
        return zone_name(str(tzid))
    moment = prop.dt
    return "UTC" if isinstance(moment, datetime) and moment.utcoffset() is not None else default


def instant(value: Any, zone: str) -> datetime:
    """Return a date (its midnight) or a time on the clock of `zone` as an instant."""
    if isinstance(value, datetime):
        if value.tzinfo is UTC or str(value.tzinfo) == "UTC":
            return value.astimezone(UTC)
        return to_instant(value.replace(tzinfo=None, fold=0), parse_zone(zone))
    if isinstance(value, date):
        return to_instant(datetime(value.year, value.month, value.day), parse_zone(zone))  # noqa: DTZ001
    raise InvalidInput(f"{value!r:.60} is not a time")
