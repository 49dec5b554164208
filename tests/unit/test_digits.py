"""Numbers are written in the digits 0 to 9; those of other scripts are refused, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import click
import pytest

from duetime.cli.number import Number
from duetime.domain.duration import parse_duration
from duetime.domain.jobs.rate import parse_rate
from duetime.domain.reasons import Reason
from duetime.domain.reminders.quiet import parse_quiet
from duetime.domain.reminders.rule_text import parse_rule
from duetime.domain.reminders.tracking import read_due
from duetime.domain.schedules.cron import parse_cron
from duetime.domain.schedules.timetable import timetable
from duetime.errors import InvalidInput, SettingsError
from duetime.settings import load_settings

DIGITS = "0123456789"
OTHERS = {
    "arabic": "".join(chr(0x0660 + digit) for digit in range(10)),
    "devanagari": "".join(chr(0x0966 + digit) for digit in range(10)),
    "full width": "".join(chr(0xFF10 + digit) for digit in range(10)),
    "raised": "\N{SUPERSCRIPT ZERO}\xb9\xb2\xb3" + "".join(map(chr, range(0x2074, 0x207A))),
}
PARSERS: dict[str, tuple[Callable[[str], Any], str]] = {
    "duration": (parse_duration, "1h30m"),
    "rate": (parse_rate, "5/10s"),
    "period of a rate": (lambda text: parse_rate(f"5/{text}"), "10s"),
    "cron": (parse_cron, "*/5 9 * * 1-5"),
    "quiet hours": (lambda text: parse_quiet(text, "UTC"), "22:00-07:00"),
    "rule": (parse_rule, "-1h30m"),
    "wall time of a rule": (lambda text: parse_rule(f"-1d at {text}"), "09:00"),
    "moment of a rule": (parse_rule, "at 2030-01-01T09:00:00Z"),
    "interval": (lambda text: timetable(text, tz="UTC"), "@every 30s"),
    "moment": (lambda text: timetable(text, tz="UTC"), "2030-01-01T09:00:00Z"),
    "step of an RRULE": (lambda text: timetable(text, tz="UTC"), "RRULE:FREQ=DAILY;INTERVAL=5"),
    "day of an RRULE": (lambda text: timetable(text, tz="UTC"), "RRULE:FREQ=MONTHLY;BYDAY=2MO"),
    "exclusion": (lambda text: timetable("0 9 * * *", tz="UTC", exclude=[text]), "2030-01-01"),
}


@pytest.mark.parametrize("script", OTHERS)
@pytest.mark.parametrize("what", PARSERS)
def test_digits_of_other_scripts_are_refused(what: str, script: str) -> None:
    parse, text = PARSERS[what]
    parse(text)

    with pytest.raises(InvalidInput):
        parse(text.translate(str.maketrans(DIGITS, OTHERS[script])))


@pytest.mark.parametrize("script", OTHERS)
@pytest.mark.parametrize("text", ["1900000000", "2030-01-01 09:00"])
def test_digits_of_other_scripts_in_a_row_are_no_due_time(text: str, script: str) -> None:
    due = read_due(text.translate(str.maketrans(DIGITS, OTHERS[script])), "UTC")

    assert isinstance(read_due(text, "UTC"), datetime)
    assert isinstance(due, Reason)


@pytest.mark.parametrize(
    "text", [*(digits[3:5] for digits in OTHERS.values()), "1_0", "1 0", "0x10", "1e3", "--5", ""]
)
def test_whole_numbers_are_written_in_digits(text: str) -> None:
    with pytest.raises(SettingsError, match=r"must be an integer such as 50, got"):
        load_settings({"concurrency": text}, environment={})
    with pytest.raises(click.BadParameter, match="is not an integer such as"):
        Number(1).convert(text, None, None)


@pytest.mark.parametrize("text", ["34", "+34", " 34\n", "034"])
def test_whole_numbers_as_people_write_them(text: str) -> None:
    assert load_settings({"concurrency": text}, environment={}).concurrency == 34
    assert Number(1).convert(text, None, None) == 34


def test_a_number_without_end_is_told_in_short() -> None:
    with pytest.raises(click.BadParameter) as caught:
        Number(1, 9).convert("7" * 5000, None, None)
    with pytest.raises(SettingsError) as refused:
        load_settings({"batch": "7" * 5000}, environment={})

    assert len(str(caught.value)) < 150
    assert len(str(refused.value)) < 150
