"""Plants each mistake in a copy of the tree and runs the tests that must notice it.

    python -m tests.mutants.runner [--jobs N] [--list] [PART OF A NAME …]

Ends with 0 if every mistake was caught. The working tree is never changed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

from tests.mutants.mutant import ENTRIES, TREE, Mutant, Stale, load_mutants, mutate

TEST_SECONDS = 60
"""A test that takes longer hangs: that is a failure too."""
RUN_SECONDS = 180
"""So does a run of the tests of a mutant, such as when the event loop cannot be closed."""
PASSED, FAILED = 0, 1
"""Exit codes of pytest; the others mean that the tests did not run."""
NOT_COPIED = shutil.ignore_patterns(".*", "site", "__pycache__", "*.egg-info")


class Verdict(StrEnum):
    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    STALE = "STALE"
    """The entry no longer fits the tree, or its tests fail without the mistake."""


class Result(NamedTuple):
    mutant: Mutant
    verdict: Verdict
    seconds: float
    detail: str = ""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of names; default: all")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once (default: 2)")
    parser.add_argument("--list", action="store_true", help="list the mistakes and stop")
    parser.add_argument("--tree", type=Path, default=TREE, help=argparse.SUPPRESS)
    parser.add_argument("--entries", type=Path, default=ENTRIES, help=argparse.SUPPRESS)
    given = parser.parse_args(arguments)
    try:
        mutants = load_mutants(given.entries)
    except Stale as error:
        print(error)
        return 1
    if given.names:
        mutants = [m for m in mutants if any(part in m.name for part in given.names)]
    if not mutants:
        print("There is no mutant of that name. `make mutants MUTANTS=--list` lists them.")
        return 2
    if given.list:
        for mutant in mutants:
            print(f"{mutant.name:50} {mutant.file}\n    {mutant.why}")
        return 0
    return _report(list(run_mutants(mutants, given.tree, jobs=given.jobs)))


def run_mutants(mutants: Sequence[Mutant], tree: Path, *, jobs: int) -> Iterator[Result]:
    """Yield what became of each, in their order; `jobs` of them run at a time."""
    copies: SimpleQueue[Path] = SimpleQueue()
    passed: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory(prefix="duetime-mutants-") as directory:
        for number in range(min(jobs, len(mutants))):
            copies.put(_copy(tree, Path(directory) / str(number)))

        def run(mutant: Mutant) -> Result:
            copy = copies.get()
            try:
                return run_mutant(mutant, copy, passed)
            finally:
                copies.put(copy)

        with ThreadPoolExecutor(jobs) as pool:
            for result in pool.map(run, mutants):
                print(f"{result.verdict:8} {result.seconds:5.1f} s  {result.mutant.name}", end="")
                print(f"\n{result.detail}" if result.detail else "", flush=True)
                yield result


def run_mutant(mutant: Mutant, copy: Path, passed: set[tuple[str, ...]]) -> Result:
    """Plant the mistake in `copy`, run its tests, and take the mistake out again.

    `passed`: the tests that are known to pass without any mistake.
    """
    begun = time.monotonic()

    def result(verdict: Verdict, detail: str = "") -> Result:
        return Result(mutant, verdict, time.monotonic() - begun, detail)

    try:
        text = mutate(mutant, copy)
    except Stale as error:
        return result(Verdict.STALE, f"    {error}")
    with _planted(copy / mutant.file, text):
        code, output = _pytest(mutant, copy)
    if code == PASSED:
        return result(
            Verdict.SURVIVED,
            f"    {mutant.why}\n    in {mutant.file}; not noticed by {', '.join(mutant.tests)}",
        )
    if code != FAILED:
        return result(Verdict.STALE, f"    the tests could not run (exit code {code}):\n{output}")
    # A test that fails anyway catches nothing.
    tests = (_backends(mutant), *mutant.tests)
    if tests not in passed:
        code, output = _pytest(mutant, copy)
        if code != PASSED:
            return result(Verdict.STALE, f"    the tests fail without the mistake:\n{output}")
        passed.add(tests)
    return result(Verdict.CAUGHT)


def _copy(tree: Path, to: Path) -> Path:
    shutil.copytree(tree, to, ignore=NOT_COPIED)
    return to


@contextmanager
def _planted(path: Path, text: str) -> Iterator[None]:
    original = path.read_text()
    try:
        _write(path, text)
        yield
    finally:
        _write(path, original)


def _write(path: Path, text: str) -> None:
    path.write_text(text)
    if path.suffix == ".py":
        # Compiled files are told apart by size and second only.
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def _pytest(mutant: Mutant, copy: Path) -> tuple[int, str]:
    try:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "pytest", "-q", "-x", "--no-header", "--tb=short"),
                *("-p", "no:cacheprovider", "--timeout", str(TEST_SECONDS)),
                *("-k", _backends(mutant), *mutant.tests),
            ],
            cwd=copy,
            # Before the installed one: the copy is tested.
            env=os.environ | {"PYTHONPATH": str(copy / "src")},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=RUN_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return FAILED, f"The tests had not ended after {RUN_SECONDS} s."
    return done.returncode, done.stdout


def _backends(mutant: Mutant) -> str:
    """The backend that the mistake is in; else both."""
    if "storage/postgres/" in mutant.file:
        return "not sqlite and not postgres18"
    if "storage/sqlite/" in mutant.file:
        return "not postgres15 and not postgres18"
    return "not postgres18"


def _report(results: Sequence[Result]) -> int:
    counts = {verdict: sum(r.verdict is verdict for r in results) for verdict in Verdict}
    print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 0 if counts[Verdict.CAUGHT] == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
