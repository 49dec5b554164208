"""A ledger outside of the database: what steps of flows really did, in the order in which they did.

One append-only file, whichever process writes to it: a line is written by one call, so that lines
of processes that are killed are there as a whole, or not at all.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

VARIABLE = "DUETIME_TEST_LEDGER"
_JUST = 0.05


class Line(NamedTuple):
    word: str
    """`began` and `effect`: a step was run. `recorded`: what it returned was handed on."""
    run: int
    step: str
    pid: int
    at: float


def write(word: str, run: int, step: str) -> None:
    line = f"{word} {run} {step} {os.getpid()} {time.time()}\n"
    file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def read(path: Path) -> list[Line]:
    if not path.exists():
        return []
    return [
        Line(word, int(run), step, int(pid), float(at))
        for word, run, step, pid, at in (line.split() for line in path.read_text().splitlines())
    ]


def check(
    lines: list[Line],
    *,
    runs: int,
    steps: list[str],
    stood_still: Sequence[tuple[int, float, float]] = (),
) -> Counter[str]:
    """Every step of every run had its effect, and no recorded step was begun again.

    `stood_still`: processes, from when and until when. One that was stopped just after it had
    checked its lease begins its step when it goes on; that cannot be prevented.

    Returns how many steps were run, and how many of them twice: their record was not written.
    """
    recorded: set[tuple[int, str]] = set()
    begun_again = []
    effects: Counter[tuple[int, str]] = Counter()
    for line in lines:
        place = (line.run, line.step)
        if line.word == "recorded":
            recorded.add(place)
        elif line.word == "effect":
            effects[place] += 1
        elif place in recorded and not any(
            line.pid == pid and start - _JUST <= line.at < end + _JUST
            for pid, start, end in stood_still
        ):
            begun_again.append(line)
    assert not begun_again, f"{begun_again}; stood still: {stood_still}"
    assert set(effects) == {(run, step) for run in range(runs) for step in steps}
    return Counter(steps=len(effects), twice=sum(count > 1 for count in effects.values()))
