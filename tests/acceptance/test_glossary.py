"""The glossary is complete: every noun of the API, every table and every state is in it, once."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from duetime import Duetime, JobState
from duetime.api.lazy import lazy
from duetime.domain.jobs.job import AttemptOutcome
from duetime.domain.reminders.delivery import DeliveryStatus
from duetime.domain.reminders.reminder import ReminderStatus
from duetime.domain.schedules.schedule import TickStatus

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "glossary.md").read_text()
SECTIONS = {
    section.partition("\n")[0].lstrip("# "): section
    for section in re.split(r"^(?=###? )", PAGE, flags=re.MULTILINE)[1:]
}


def words_of(sections: Iterable[str]) -> list[str]:
    """The words that the sections define: bold, in the first column."""
    rows = [
        row
        for name in sections
        for row in re.findall(r"^\|([^|]*)\|", SECTIONS[name], re.MULTILINE)
    ]
    return [word for row in rows for word in re.findall(r"\*\*([^*]+)\*\*", row)]


def is_of_states(section: str) -> bool:
    return section.startswith(("States of", "Statuses of", "Outcomes of"))


def test_a_word_is_defined_once() -> None:
    words = Counter(words_of(name for name in SECTIONS if not is_of_states(name)))

    assert [word for word, count in words.items() if count > 1] == []
    assert len(words) > 60


def test_every_noun_of_the_api_is_defined() -> None:
    known = {word.split()[-1] for word in words_of(SECTIONS)}
    nouns = [name for name, value in vars(Duetime).items() if isinstance(value, lazy)]
    public = [noun for noun in nouns if not noun.startswith("_")]

    assert "jobs" in public
    assert [noun for noun in public if not {noun, noun.removesuffix("s")} & known] == []


def test_every_table_is_in_the_glossary() -> None:
    storage = ROOT / "src" / "duetime" / "storage"
    schema = "".join(file.read_text() for file in storage.glob("*/migrations/*.up.sql"))
    tables = set(
        re.findall(r"create (?:unlogged )?table (?:if not exists )?duetime[._](\w+) \(", schema)
    )

    assert "job" in tables
    assert [table for table in sorted(tables) if f"`{table}`" not in PAGE] == []


@pytest.mark.parametrize(
    ("section", "states"),
    [
        ("States of a job", JobState),
        ("Outcomes of an attempt", AttemptOutcome),
        ("Statuses of a tick", TickStatus),
        ("Statuses of a reminder", ReminderStatus),
        ("Statuses of a delivery", DeliveryStatus),
    ],
)
def test_every_state_is_defined(section: str, states: Iterable[str]) -> None:
    assert sorted(words_of([section])) == sorted(states)
