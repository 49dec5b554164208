"""The defaults of a job stand once in Python and once in each backend's SQL: they are the same."""

from __future__ import annotations

from duetime.domain.jobs.job import (
    DEFAULT_MAX_ARGS_BYTES,
    DEFAULT_MAX_ATTEMPTS,
    DEFAULT_PRIORITY,
    DEFAULT_QUEUE,
)
from duetime.settings import Settings
from tests.conftest import Backend, query


def test_sql_has_the_defaults_of_python(backend: Backend) -> None:
    options = "duetime.task_default"
    if backend.is_postgres:
        options = "duetime._task_options('a.task.that.no.worker.registered')"

    found = query(backend, f"select queue, priority, max_attempts from {options}")

    assert found == [(DEFAULT_QUEUE, DEFAULT_PRIORITY, DEFAULT_MAX_ATTEMPTS)]


def test_sql_has_the_limit_of_python_for_arguments(pg_url: str) -> None:
    # On SQLite only Python enqueues, and checks it.
    options = "duetime._task_options('a.task.that.no.worker.registered')"

    found = query(Backend("postgres15", pg_url), f"select max_args_bytes from {options}")

    assert found == [(DEFAULT_MAX_ARGS_BYTES,)]


def test_settings_have_the_defaults_of_a_job() -> None:
    settings = Settings()

    assert settings.queues == (DEFAULT_QUEUE,)
    assert settings.max_attempts == DEFAULT_MAX_ATTEMPTS
    assert settings.max_args_bytes == DEFAULT_MAX_ARGS_BYTES
