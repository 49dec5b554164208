"""Each job is stored with the options that it was given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from duetime.domain.jobs.job import NewJob
from duetime.storage.store import Store
from tests.conftest import Backend, query

OTHER: dict[str, Any] = {
    "task": "another",
    "queue": "another",
    "priority": 1,
    "run_at": datetime(2031, 1, 1, tzinfo=UTC),
    "delay": timedelta(hours=1),
    "partition": "ann",
    "max_attempts": 7,
    "timeout": timedelta(minutes=1),
    "expires_at": datetime(2032, 1, 1, tzinfo=UTC),
    "expires_after": timedelta(hours=2),
    "trace": {"traceparent": "00-1-2-03"},
    "flow": True,
}
OF_EACH_JOB = {"args", "key", "on_conflict", "hold"}


@pytest.mark.parametrize("more", [0, 1000], ids=["few", "many"])
async def test_jobs_that_differ_in_one_option_keep_it(
    store: Store, backend: Backend, more: int
) -> None:
    """What jobs of one call have in common is prepared once."""
    plain = NewJob(task="noop")
    others = [replace(plain, **{name: value}) for name, value in OTHER.items()]
    jobs = [job for other in others for job in (plain, other)] + [plain] * more
    ids = [one.job_id for one in await store.enqueue(jobs)]
    rows = query(
        backend,
        "select j.id, j.task, j.queue, j.priority, d.run_at, d.partition, j.partition,"
        " j.max_attempts, j.timeout, j.expires_at, cast(j.trace as text), j.flow"
        " from duetime.job as j join duetime.due as d on d.job_id = j.id",
    )
    stored = {job_id: rest for job_id, *rest in rows}

    assert set(OTHER) | OF_EACH_JOB == set(NewJob.__struct_fields__)
    assert all(stored[job_id] == stored[ids[0]] for job_id in ids[: 2 * len(others) : 2])
    for name, job_id in zip(OTHER, ids[1::2], strict=False):
        assert stored[job_id] != stored[ids[0]], name
