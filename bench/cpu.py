"""CPU time of processes: what they cost, however busy the machine is."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: Iterable[int]) -> float:
    """Return how long these processes have run so far, and their children, gone or not."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue  # It is gone.
            parents[int(entry.name)] = int(fields[1])
            used[int(entry.name)] = sum(int(field) for field in fields[11:15])
    wanted = set(pids)
    ours = {pid for pid in used if pid in wanted or parents[pid] in wanted}
    return sum(used[pid] for pid in ours) / _TICKS
