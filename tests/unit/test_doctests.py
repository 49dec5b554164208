"""The examples in the domain's docstrings are true."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import duetime.domain

MODULES = [module.name for module in pkgutil.walk_packages(duetime.domain.__path__)]


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    failed, _ = doctest.testmod(import_module(f"duetime.domain.{name}"), verbose=False)

    assert failed == 0


def test_there_are_examples() -> None:
    finder = doctest.DocTestFinder()
    examples = [
        test
        for name in MODULES
        for test in finder.find(import_module(f"duetime.domain.{name}"))
        if test.examples
    ]

    assert len(examples) >= 3
