"""The examples in docstrings are true."""

from __future__ import annotations

import doctest
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
MODULES = [
    ".".join(file.relative_to(SOURCE).with_suffix("").parts)
    for file in sorted((SOURCE / "duetime").rglob("*.py"))
    if ">>> " in file.read_text()
]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name), verbose=False)

    assert tried > 0
    assert failed == 0


def test_every_kind_of_module_has_examples() -> None:
    packages = {name.rpartition(".")[0] for name in MODULES}

    assert {"duetime.domain.jobs", "duetime.domain.schedules", "duetime.channels"} <= packages
