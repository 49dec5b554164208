"""What a measure brought, and how it compares."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from bench.scale import Scale


@dataclass(frozen=True)
class Reading:
    """A value of Duetime beside its baseline, with the rounds that they come from."""

    value: float
    baseline: float
    rounds: Sequence[float] = ()
    baseline_rounds: Sequence[float] = ()
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.value / self.baseline


class Wrong(AssertionError):
    """A measured system did not do what it was measured for: lost, doubled, early."""


def medians(ours: Sequence[float], baseline: Sequence[float], note: str = "") -> Reading:
    return Reading(statistics.median(ours), statistics.median(baseline), ours, baseline, note)


def alternate(scale: Scale, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """Measure each side in turn, A B A B: what slows the machine down slows both."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(scale.rounds):
        for name, side in sides.items():
            found[name].append(side())
    return found


def best(found: dict[str, list[float]], *names: str) -> str:
    """Of several ways to do the same, the one with the highest median."""
    return max(names, key=lambda name: statistics.median(found[name]))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
