"""What a measure brought, and how it compares."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

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


def alternate_briefly(scale: Scale, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """As `alternate`, with the fewest rounds: all measures together take less than ten minutes."""
    return alternate(replace(scale, rounds=scale.fewest_rounds), **sides)


def alternate(scale: Scale, **sides: Callable[[], float]) -> dict[str, list[float]]:
    """Measure each side in turn, A B A B: what slows the machine down slows both."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for _ in rounds(scale):
        for name, side in sides.items():
            found[name].append(side())
    return found


def rounds(scale: Scale) -> Iterator[int]:
    """Count the rounds: all of them, or on a slow machine at least the fewest."""
    began = time.monotonic()
    for number in range(scale.rounds):
        if number >= scale.fewest_rounds and time.monotonic() - began > scale.patience_seconds:
            return
        yield number


def best(found: dict[str, list[float]], *names: str) -> str:
    """Of several ways to do the same, the one with the highest median."""
    return max(names, key=lambda name: statistics.median(found[name]))


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of the values do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]
