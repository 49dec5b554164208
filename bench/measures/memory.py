"""What a worker holds in memory: with nothing to do, and after a million jobs."""

from __future__ import annotations

import re
import time
from pathlib import Path

from bench.environment import Environment, duetime_worker, stop_worker
from bench.measures.drain import load, start, wait_until_ended
from bench.processes import Child
from bench.reading import Reading


def measure(environment: Environment) -> dict[str, Reading]:
    database = environment.database("plain")
    with duetime_worker(database) as worker, Child("raw_idle", dsn=database) as bare:
        bare.hear()
        time.sleep(environment.scale.idle_seconds)
        return {"rss_idle_mb": Reading(_resident_mb(worker.pid), _resident_mb(bare.pid))}


def measure_million(environment: Environment) -> dict[str, Reading]:
    """What the same worker holds after each hundred thousand jobs, up to a million."""
    scale = environment.scale
    database = environment.database("million")
    held = []
    with Child("worker", database=database) as worker:
        worker.hear()
        start([worker])
        for round_ in range(1, scale.memory_rounds + 1):
            load(database, scale.drain_jobs, empty=False)
            wait_until_ended([worker], round_ * scale.drain_jobs)
            held.append(_resident_mb(worker.pid))
        stop_worker(worker)
    course = " → ".join(f"{megabytes:.1f}" for megabytes in held)
    return {"rss_million_mb": Reading(held[-1], held[0], note=f"{course} MB")}


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
