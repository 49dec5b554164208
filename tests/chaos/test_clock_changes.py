"""Every zone, every clock change from 2025 to 2030: `make chaos`."""

from __future__ import annotations

import pytest

from tests.chaos.clock_changes import all_zones, compare

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]


def test_every_clock_change_agrees_with_a_walk_through_real_time() -> None:
    result = compare(all_zones())

    print(f"{result.zones} zones, {result.changes} clock changes, {result.compared} comparisons")
    assert result.compared > 100_000
    assert result.mismatches[:10] == []
