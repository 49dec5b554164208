"""A parent and its worker processes: who is replaced, and when it gives up."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from duetime.engine.process import COULD_NOT_START
from duetime.engine.supervisor import Supervisor

CHILD = """
import os, signal, sys, time
number, folder, fails = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
with open(f"{folder}/{number}", "a") as file:
    file.write("started\\n")
starts = len(open(f"{folder}/{number}").readlines())
if starts <= fails:
    sys.exit(1)
if fails:
    os.kill(os.getppid(), signal.SIGTERM)
time.sleep(60)
"""


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("duetime.engine.supervisor._BACKOFF", (0.05,))


def run(folder: Path, fails: Sequence[int]) -> int:
    """Run children, of which each fails to start so many times; then one that failed ends all."""

    def command(number: int) -> list[str]:
        return [sys.executable, "-c", CHILD, str(number), str(folder), str(fails[number - 1])]

    return Supervisor(len(fails), command=command).run()


def starts(folder: Path, number: int) -> int:
    return len((folder / str(number)).read_text().splitlines())


def test_a_child_that_cannot_start_for_a_moment_does_not_stop_its_sibling(tmp_path: Path) -> None:
    assert run(tmp_path, [0, 2]) == 0
    assert (starts(tmp_path, 1), starts(tmp_path, 2)) == (1, 3)


def test_if_no_child_can_start_the_parent_gives_up(tmp_path: Path) -> None:
    assert run(tmp_path, [1000, 1000]) == COULD_NOT_START
