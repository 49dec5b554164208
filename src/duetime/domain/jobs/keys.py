"""Keys of jobs: of the runs of schedules, and those that handlers hand to providers."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime

from duetime.domain.checks import RUN_KEYS

REMINDER_PREFIX = "dtr_"
DIGEST_PREFIX = "dtd_"
_JOB_PREFIX = "dtj_"


def run_key(name: str, tick: datetime) -> str:
    """The stable key of a run, the same for all workers."""
    moment = tick.astimezone(UTC).isoformat().replace("+00:00", "Z")
    return f"{RUN_KEYS}{name}@{moment}"


def read_run_key(key: str | None) -> tuple[str, datetime] | None:
    """The schedule and the tick of a run's key; None: it is no run.

    >>> read_run_key("tick:nightly@2026-11-16T03:00:00Z")
    ('nightly', datetime.datetime(2026, 11, 16, 3, 0, tzinfo=datetime.timezone.utc))
    """
    if key is None or not key.startswith(RUN_KEYS):
        return None
    name, _, tick = key.removeprefix(RUN_KEYS).rpartition("@")
    try:
        return name, datetime.fromisoformat(tick)
    except ValueError:
        return None


def make_job_key(installation: str, task: str, job_id: int, key: str | None) -> str:
    """Return the key that a job hands to providers.

    It depends on the job's own key, if it has one: jobs of one task with the same key do the same.

    >>> make_job_key("9f1c2d3e4b5a4c6d", "shop.pay", 7, None)
    'dtj_9f1c2d3e4b5a4c6d_7'
    """
    if key is None:
        return f"{_JOB_PREFIX}{installation}_{job_id}"
    if key.startswith((REMINDER_PREFIX, DIGEST_PREFIX)) and task.startswith("duetime."):
        return key
    return _JOB_PREFIX + hash_key(f"{installation}|{task}|{key}")


def hash_key(text: str) -> str:
    """Return the part of a key that stands for a text of any length."""
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:32]
