"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from duetime.domain.duration import (
    format_duration,
    parse_duration,
    parse_positive_duration,
    read_duration,
)
from duetime.errors import InvalidInput

SPANS = st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=36_525))


@given(SPANS)
def test_what_is_written_is_read_back(span: timedelta) -> None:
    assert parse_duration(format_duration(span)) == span


@given(SPANS)
def test_a_timedelta_is_taken_as_it_is(span: timedelta) -> None:
    assert parse_duration(span) is span


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0s", 0),
        ("250ms", 0.25),
        ("1.5s", 1.5),
        ("5m", 300),
        ("1h30m", 5400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("1d2h3m4s5ms", 93_784.005),
    ],
)
def test_units_add_up(text: str, seconds: float) -> None:
    assert parse_duration(text) == timedelta(seconds=seconds)


@given(st.integers(0, 36_525 * 86_400) | st.floats(0, 36_525 * 86_400))
def test_a_number_is_seconds(number: float) -> None:
    assert parse_duration(number) == timedelta(seconds=number)


@pytest.mark.parametrize(
    "text", ["", "s", "5 m", " 5m", "5m ", "-5m", "+5m", "5M", "5y", "1h,5m", "1e3s", ".5s"]
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"delay .* is not a duration"):
        parse_duration(text, name="delay")


@given(st.text())
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        span = parse_duration(text)
    except InvalidInput:
        return
    assert timedelta(0) <= span <= timedelta(days=36_525)


@pytest.mark.parametrize("value", [True, False, None, b"5s", ["5s"], 5j])
def test_what_is_no_duration_is_refused(value: Any) -> None:
    with pytest.raises(InvalidInput, match="lease must be a number of seconds, a string such as"):
        parse_duration(value, name="lease")


@pytest.mark.parametrize("text", ["5", "1.5", "٥"])
def test_a_string_needs_a_unit(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"delay '.*' (has no unit. Write '.*s'|is not a dur)"):
        parse_duration(text, name="delay")


def test_a_variable_or_an_option_may_be_a_number_of_seconds() -> None:
    assert read_duration("2", name="lease") == timedelta(seconds=2)
    assert read_duration("0.25", name="lease") == timedelta(milliseconds=250)
    assert read_duration("5m", name="lease") == timedelta(minutes=5)
    for text in ("-2", "1e3", "nan", "inf", "1_000", "٥", ""):
        with pytest.raises(InvalidInput, match="is not a duration"):
            read_duration(text, name="lease")
    with pytest.raises(InvalidInput, match="at most 100 years"):
        read_duration("9" * 30, name="lease")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (timedelta(seconds=-1), "must not be negative"),
        (-1, "must not be negative, got -1"),
        (-0.5, "must not be negative"),
        (float("-inf"), "must not be negative"),
        (-(10**400), "must not be negative"),
        (float("nan"), "must be a number of seconds, got nan"),
        (float("inf"), r"at most 100 years: write '36525d' or less"),
        (10**400, r"at most 100 years: write '36525d' or less"),
        (timedelta.max, r"at most 100 years: write '36525d' or less"),
        (timedelta(days=36526), r"write '36525d' or less, got '36526d'"),
        ("36526d", r"at most 100 years: write '36525d' or less"),
        ("9" * 30 + "w", r"at most 100 years: write '36525d' or less"),
        ("P36526D", r"at most 100 years: write '36525d' or less, got 'P36526D'"),
    ],
)
def test_out_of_range(value: str | timedelta | float, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason) as refused:
        parse_duration(value)
    assert refused.value.code == "invalid_input"


@pytest.mark.parametrize("value", ["61m", "99999d", "9" * 30 + "w", "PT61M", 3601, timedelta.max])
def test_a_limit_of_its_own_is_named(value: str | timedelta | float) -> None:
    hour = timedelta(hours=1)
    assert parse_duration("1h", name="within", most=hour) == hour
    for parse in (parse_duration, parse_positive_duration):
        with pytest.raises(InvalidInput, match=r"^within must be at most 1h, got '"):
            parse(value, name="within", most=hour)
