"""What reminders say, and how fast they may be said."""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from typing import Any

import pytest

from duetime.domain.jobs.rate import Rate, parse_rate
from duetime.domain.reminders.delivery import DeliveryStatus, comes_after, read_receipt
from duetime.errors import InvalidInput

WITHOUT_JINJA2 = """
import asyncio, sys
sys.modules["jinja2"] = None
from datetime import UTC, datetime
from duetime import Duetime
from duetime.channels.console import Console

app = Duetime("sqlite:///never-opened.db")
app.add_channel(Console())

async def main():
    async with app.testing(now="2026-03-06T18:00Z") as world:
        due = datetime(2026, 3, 6, 19, tzinfo=UTC)
        where = {"tz": "Europe/Paris", "recipients": ["ann"]}
        await app.subjects.put("game", due=due, remind="-30m", **where)
        await world.advance("1h")

asyncio.run(main())
"""


def test_the_plain_sentence_does_not_import_jinja2(tmp_path: Any) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_JINJA2],
        capture_output=True, text=True, cwd=tmp_path, timeout=30, check=False,
    )  # fmt: skip

    assert "ann: game | game is due in 30 minutes (Fri 20:00, Europe/Paris)" in done.stdout


@pytest.mark.parametrize(
    ("text", "count", "seconds", "said"),
    [
        ("10/s", 10, 1, "10/s"),
        (" 100 / m ", 100, 60, "100/m"),
        ("5/10s", 5, 10, "5/10s"),
        ("1/1h30m", 1, 5400, "1/1h30m"),
        ("1000/d", 1000, 86400, "1000/d"),
        ("3/250ms", 3, 0.25, "3/250ms"),
    ],
)
def test_rates_are_read_and_said(text: str, count: int, seconds: float, said: str) -> None:
    rate = parse_rate(text)

    assert rate == Rate(count, timedelta(seconds=seconds))
    assert str(rate) == said
    assert parse_rate(said) == rate


@pytest.mark.parametrize(
    "text", ["", "10", "s", "0/s", "1/0s", "1/32d", "100001/s", "1/x", None, 1]
)
def test_other_rates_are_refused(text: Any) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["1/32d", "1/99999d"])
def test_a_period_that_is_too_long_is_refused_with_its_limit(text: str) -> None:
    with pytest.raises(InvalidInput, match="A rate's period must be at most 31d, got"):
        parse_rate(text)


def test_receipts_never_go_back() -> None:
    order = ["sent", "delivered", "bounced", "acknowledged"]
    for place, status in enumerate(order):
        later = [DeliveryStatus(one) for one in order[place + 1 :]]
        assert all(comes_after(one, DeliveryStatus(status)) for one in later)
        assert not any(comes_after(DeliveryStatus(status), one) for one in later)
        assert not comes_after(DeliveryStatus(status), DeliveryStatus(status))


@pytest.mark.parametrize("status", ["sent", "pending", "opened", "", None])
def test_other_receipts_are_refused(status: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"is not a status of a receipt\. Use one of: delivered, bounced, failed"
    ):
        read_receipt(status)
