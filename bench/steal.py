"""Time that the hypervisor took from this machine while something was measured.

On a machine that others share, a handler that is 20 ms late may have been held up by the host: then
the kernel counts the time as stolen. Every value counts all that was measured; a note tells what
remains without the samples during which time was stolen.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from bench.reading import percentile

_STAT = Path("/proc/stat")
_SAMPLE_SECONDS = 0.02
_AHEAD_SECONDS = 0.06
"""A worker claims 50 ms ahead: what holds it up then may make it late."""
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class Steal:
    """Watches in the background."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int]] = [(0.0, _stolen())]
        """When the kernel's count was first seen to have grown, and to what."""
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._watch.join()

    def held_up(self, due: float, late_ms: float) -> bool:
        """Whether time was stolen from shortly before `due` until it happened, so late."""
        until = due + late_ms / 1e3 + 2 * _SAMPLE_SECONDS
        return any(due - _AHEAD_SECONDS <= at <= until for at, _ in self._seen)

    @property
    def seconds(self) -> float:
        """CPU time that was stolen so far."""
        return (self._seen[-1][1] - self._seen[0][1]) / _TICKS_PER_SECOND

    def __str__(self) -> str:
        return f"{self.seconds:.2f} s of CPU were stolen by the host"

    def _look(self) -> None:
        while not self._over.wait(_SAMPLE_SECONDS):
            stolen = _stolen()
            if stolen > self._seen[-1][1]:
                self._seen.append((time.time(), stolen))


def say_undisturbed(late: Sequence[float], held_up: Sequence[bool], share: int = 99) -> str:
    """Return what remains without the samples that the host held up; nothing if there are none."""
    rest = [ms for ms, held in zip(late, held_up, strict=True) if not held]
    if len(rest) == len(late) or not rest:
        return ""
    return (
        f"; without the {len(late) - len(rest)} of {len(late)} during which the host stole time: "
        f"p{share} {percentile(rest, share / 100):.1f} ms"
    )


def _stolen() -> int:
    """Ticks of the clock that were stolen so far; 0 where the kernel does not say."""
    try:
        return int(_STAT.read_text().split("\n", 1)[0].split()[8])
    except (OSError, IndexError, ValueError):
        return 0
