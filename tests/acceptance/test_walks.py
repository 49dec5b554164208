"""The walks that ARCHITECTURE.md shows are those that the code takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_architecture_shows_the_files_that_the_walks_visit() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "trace_walks.py", "--check"],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )

    assert done.returncode == 0, f"run scripts/trace_walks.py --write:\n{done.stdout}{done.stderr}"
