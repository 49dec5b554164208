"""`make check` notices imports that point the wrong way: each contract is broken on purpose."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"][
    "contracts"
]

WRONG_IMPORTS = {
    "layers": ("storage/store.py", "import duetime.engine.worker"),
    "features": ("engine/loop.py", "import duetime.storage.schedules.rows"),
    "engine": ("engine/lanes.py", "import duetime.engine.loop"),
    "reminders": ("reminders/messages.py", "import duetime.reminders.sender"),
    "flows": ("flows/recorder.py", "import duetime.flows.execution"),
    "cycles": ("domain/jobs/retry.py", "import duetime.domain.jobs.task"),
    "domain": ("domain/duration.py", "import asyncio"),
    "domain-columns": ("domain/jobs/job.py", "import duetime.domain.schedules.cron"),
    "storage-columns": ("storage/schedules/rows.py", "import duetime.storage.reminders.sends"),
    "channels": ("channels/console.py", "import duetime.channels.email"),
    "channels-alone": ("channels/email.py", "import duetime.settings"),
    "wiring": ("app.py", "import duetime.storage.sqlite.store"),
}
"""By the contract's id: a line that breaks it, and where."""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_a_wrong_import_breaks_each_contract(tree: Path) -> None:
    for file, line in WRONG_IMPORTS.values():
        path = tree / "src" / "duetime" / file
        path.write_text(f"{path.read_text()}\n{line}\n")

    assert set(WRONG_IMPORTS) == {contract["id"] for contract in CONTRACTS}
    assert broken(tree) == set(WRONG_IMPORTS)


def test_a_module_that_no_layer_names_breaks_the_contracts(tree: Path) -> None:
    exhaustive = [contract for contract in CONTRACTS if contract.get("exhaustive")]
    for contract in exhaustive:
        for container in contract["containers"]:
            (tree / "src" / Path(*container.split(".")) / "unnamed.py").touch()

    assert {"duetime"} <= {name for one in exhaustive for name in one["containers"]}
    assert broken(tree) == {contract["id"] for contract in exhaustive}


def broken(tree: Path) -> set[str]:
    """The ids of the contracts that `lint-imports` reports as broken."""
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree / "src")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    ids = {contract["name"]: contract["id"] for contract in CONTRACTS}
    verdicts = [line.partition(" BROKEN") for line in done.stdout.splitlines()]
    return {ids[name] for name, word, _ in verdicts if word}
