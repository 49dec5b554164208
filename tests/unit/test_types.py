"""Type checkers accept right calls of the API and refuse wrong ones: mypy and pyright alike."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import get_args

import pytest

from duetime.domain.jobs.job import JobState, JobStateLike
from duetime.domain.reminders.delivery import DeliveryStatus, ReceiptStatus, read_receipt
from duetime.domain.reminders.reminder import ReminderStatus, ReminderStatusLike
from duetime.domain.schedules.schedule import TickStatus, TickStatusLike
from duetime.settings import (
    DEFAULT_RETENTION,
    Retention,
    Settings,
    SettingsArguments,
    WorkerArguments,
)

CALLS = Path(__file__).with_name("typed_calls.py")
ROOT = CALLS.parents[2]
_REFUSED = re.compile(r"# refused: (.+)$")


def run(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command, str(CALLS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def mypy() -> dict[int, str]:
    """What mypy says, by line."""
    said: defaultdict[int, str] = defaultdict(str)
    for line in run("mypy", "--no-error-summary", "--no-pretty").splitlines():
        found = re.match(r".*typed_calls\.py:(\d+): error: (.*)", line)
        if found:
            said[int(found[1])] += found[2]
    return said


def pyright() -> dict[int, str]:
    """What pyright says, by line."""
    said: defaultdict[int, str] = defaultdict(str)
    # Else it does not find what we build on, and takes every struct for anything.
    found = run("pyright", "--outputjson", "--pythonpath", sys.executable)
    for one in json.loads(found)["generalDiagnostics"]:
        if one["severity"] == "error":
            said[one["range"]["start"]["line"] + 1] += one["message"]
    return said


@pytest.mark.parametrize("checker", [mypy, pyright])
def test_right_calls_pass_and_wrong_ones_are_refused(
    checker: Callable[[], dict[int, str]],
) -> None:
    lines = CALLS.read_text().splitlines()
    refused = {
        number: found[1]
        for number, line in enumerate(lines, start=1)
        if (found := _REFUSED.search(line))
    }
    said = checker()

    accepted = [
        lines[number - 1]
        for number, what in refused.items()
        if not re.search(rf"{re.escape(what)}|[Oo]verload", said.get(number, ""))
    ]
    wrongly_refused = {n: text for n, text in said.items() if n not in refused}
    assert len(refused) > 20
    assert accepted == []
    assert wrongly_refused == {}


def test_every_setting_is_a_typed_keyword() -> None:
    assert {"database", *SettingsArguments.__annotations__} == set(Settings.__struct_fields__)
    assert set(WorkerArguments.__annotations__) - set(SettingsArguments.__annotations__) == {"name"}
    assert set(Retention.__annotations__) == set(DEFAULT_RETENTION)


@pytest.mark.parametrize(
    ("states", "like"),
    [
        (JobState, JobStateLike),
        (ReminderStatus, ReminderStatusLike),
        (TickStatus, TickStatusLike),
    ],
)
def test_strings_stand_for_every_state(states: type[JobState], like: object) -> None:
    enum, names = get_args(like)

    assert enum is states
    assert get_args(names) == tuple(state.value for state in states)


def test_strings_stand_for_every_receipt() -> None:
    members = {one for one in get_args(ReceiptStatus) if isinstance(one, DeliveryStatus)}
    names = [one for one in get_args(ReceiptStatus) if type(one) is str]

    assert {DeliveryStatus(name) for name in names} == members
    assert all(read_receipt(name) == name for name in names)
