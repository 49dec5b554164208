"""Threads take turns often while something depends on it, and as before afterwards."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from duetime.interpreter import SWITCH_SECONDS, FrequentSwitches

DEFAULT = 0.005


@pytest.fixture(autouse=True)
def default_interval() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(DEFAULT)
    yield
    sys.setswitchinterval(before)


def test_the_interval_is_short_until_the_last_user_is_done() -> None:
    switches = FrequentSwitches()

    with switches:
        with switches:
            assert sys.getswitchinterval() == SWITCH_SECONDS
        assert sys.getswitchinterval() == SWITCH_SECONDS
    assert sys.getswitchinterval() == DEFAULT


def test_a_shorter_interval_of_the_application_stays() -> None:
    sys.setswitchinterval(0.0001)

    with FrequentSwitches():
        assert sys.getswitchinterval() == pytest.approx(0.0001)
    assert sys.getswitchinterval() == pytest.approx(0.0001)


def test_an_interval_that_the_application_sets_meanwhile_stays() -> None:
    with FrequentSwitches():
        sys.setswitchinterval(0.02)

    assert sys.getswitchinterval() == 0.02
