"""What SQL stores for a job that names no options is what Python says."""

from __future__ import annotations

from duetime.domain.jobs.job import (
    DEFAULT_MAX_ARGS_BYTES,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
)
from duetime.settings import Settings
from duetime.storage.store import Store
from tests.conftest import Backend, query

ENQUEUE = {
    True: "select duetime.enqueue('unknown')",
    False: "insert into duetime_new_job (id, task, run_at, args, created_at)"
    " values (1, 'unknown', 0, '{}', 0)",
}
"""On PostgreSQL by the function that anybody calls, on SQLite by the view that makes jobs."""


async def test_a_job_without_options_has_the_defaults(store: Store, backend: Backend) -> None:
    query(backend, ENQUEUE[backend.is_postgres])
    found = query(backend, "select queue, priority, max_attempts, timeout from duetime.job")

    assert found == [(DEFAULT_QUEUE, DEFAULT_PRIORITY, DEFAULT_MAX_ATTEMPTS, None)]
    assert Settings().queues == (DEFAULT_QUEUE,)
    assert Settings().max_attempts == DEFAULT_MAX_ATTEMPTS


def test_sql_has_the_limit_of_python_for_arguments(pg_url: str) -> None:
    # On SQLite only Python checks it.
    found = query(
        Backend("postgres15", pg_url),
        "select max_args_bytes from duetime._task_options('unknown')",
    )

    assert found == [(DEFAULT_MAX_ARGS_BYTES,)]
    assert Settings().max_args_bytes == DEFAULT_MAX_ARGS_BYTES
