"""A sample of the clock changes of 2025 to 2030; `make chaos` looks at all of them."""

from __future__ import annotations

from tests.chaos.clock_changes import all_zones, compare

ODD = ("Australia/Lord_Howe", "Antarctica/Troll", "Africa/Casablanca", "America/Santiago")


def test_odd_zones_agree_with_a_walk_through_real_time() -> None:
    result = compare(ODD, every=5)

    assert result.compared > 400
    assert result.mismatches == []


def test_a_sample_of_all_zones_agrees_with_a_walk_through_real_time() -> None:
    result = compare(all_zones()[::11], every=11)

    assert result.compared > 1000
    assert result.mismatches == []
