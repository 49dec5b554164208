"""Named specs that come with Duetime."""

from __future__ import annotations

from difflib import get_close_matches

import msgspec

from duetime.errors import InvalidSchedule


class Preset(msgspec.Struct, frozen=True):
    """A spec under a name that people choose from."""

    name: str
    spec: str
    description: str


PRESETS = (
    Preset("Every minute", "* * * * *", "At the start of every minute"),
    Preset("Every 5 minutes", "*/5 * * * *", "At minutes 0, 5, 10 … of every hour"),
    Preset("Every 15 minutes", "*/15 * * * *", "At minutes 0, 15, 30 and 45 of every hour"),
    Preset("Every 30 minutes", "*/30 * * * *", "At minutes 0 and 30 of every hour"),
    Preset("Every hour", "0 * * * *", "At the start of every hour"),
    Preset("Every 6 hours", "0 */6 * * *", "At 00:00, 06:00, 12:00 and 18:00"),
    Preset("Daily at midnight", "0 0 * * *", "At 00:00 every day"),
    Preset("Daily at noon", "0 12 * * *", "At 12:00 every day"),
    Preset("Daily 9 AM", "0 9 * * *", "At 09:00 every day"),
    Preset("Weekdays 9 AM", "0 9 * * 1-5", "At 09:00 from Monday to Friday"),
    Preset("Weekdays 5 PM", "0 17 * * 1-5", "At 17:00 from Monday to Friday"),
    Preset("Weekends 9 AM", "0 9 * * 6,0", "At 09:00 on Saturday and Sunday"),
    Preset("Weekly on Monday 9 AM", "0 9 * * 1", "At 09:00 every Monday"),
    Preset("Weekly on Friday 5 PM", "0 17 * * 5", "At 17:00 every Friday"),
    Preset("First of the month", "0 0 1 * *", "At 00:00 on the first day of every month"),
    Preset("Last of the month", "0 0 L * *", "At 00:00 on the last day of every month"),
    Preset("First Monday of the month", "0 9 * * 1#1", "At 09:00 on every first Monday"),
    Preset("Quarterly", "0 0 1 1,4,7,10 *", "At 00:00 on 1 January, April, July and October"),
    Preset("Yearly", "0 0 1 1 *", "At 00:00 on 1 January"),
)
_BY_NAME = {preset.name.casefold(): preset for preset in PRESETS}


def find_preset(name: str) -> Preset:
    """Return the preset of that name, in capitals or not, or raise with names that are near.

    >>> find_preset("weekdays 9 am").spec
    '0 9 * * 1-5'
    """
    wanted = " ".join(str(name)[:100].casefold().split())
    if wanted in _BY_NAME:
        return _BY_NAME[wanted]
    near = get_close_matches(wanted, _BY_NAME, n=3)
    hint = " or ".join(repr(_BY_NAME[one].name) for one in near)
    raise InvalidSchedule(
        f"There is no preset {str(name)[:60]!r}. "
        + (f"Did you mean {hint}?" if near else "`duetime schedules presets` lists them.")
    )
