"""Messages on the console and in the log."""

from __future__ import annotations

import io
import logging

import pytest

from duetime.channels.console import Console, Log
from tests.channels.messages import message


async def test_a_message_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    await Console().send(message())

    assert capsys.readouterr().out == (
        "2026-03-06T14:00:00Z ann: Chess in an hour | Bring a clock. (-1h of game:42) [dtr_4f1a]\n"
    )


async def test_a_message_without_a_recipient_names_none(capsys: pytest.CaptureFixture[str]) -> None:
    await Console().send(message(recipient=""))

    assert capsys.readouterr().out.startswith("2026-03-06T14:00:00Z Chess in an hour | ")


async def test_nothing_in_it_moves_the_cursor() -> None:
    stream = io.StringIO()

    await Console(stream).send(message(title="a\x1b[2J\r\nb", body="c\u2028d\x00"))

    [line] = stream.getvalue().splitlines()
    assert line.isprintable()


async def test_the_log_has_the_facts(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "duetime.reminders"):
        await Log(level=logging.WARNING).send(message())

    [record] = caplog.records
    assert record.levelno == logging.WARNING
    assert record.__dict__["key"] == "dtr_4f1a"
    assert "Chess in an hour" in record.getMessage()
