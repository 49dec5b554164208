"""The examples in the channels' docstrings are true."""

from __future__ import annotations

import doctest
from importlib import import_module

import pytest


@pytest.mark.parametrize("name", ["channel", "guard", "moments", "template"])
def test_examples_run(name: str) -> None:
    failed, tried = doctest.testmod(import_module(f"duetime.channels.{name}"), verbose=False)

    assert tried > 0
    assert failed == 0
