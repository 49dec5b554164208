"""What a worker with nothing to do holds in memory."""

from __future__ import annotations

import re
import time
from pathlib import Path

from bench.environment import Environment, duetime_worker
from bench.processes import Child
from bench.reading import Reading


def measure(environment: Environment) -> dict[str, Reading]:
    database = environment.database("plain")
    with duetime_worker(database) as worker, Child("raw_idle", dsn=database) as bare:
        bare.hear()
        time.sleep(environment.scale.idle_seconds)
        return {"rss_idle_mb": Reading(_resident_mb(worker.pid), _resident_mb(bare.pid))}


def _resident_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024
