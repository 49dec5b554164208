"""Settings: where they come from, which one wins, and what is refused."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest

from duetime import Duetime
from duetime.errors import InvalidInput, SettingsError
from duetime.settings import DEFAULT_RETENTION, Settings, change_settings, load_settings


def load(environment: dict[str, str] | None = None, **arguments: Any) -> Settings:
    return load_settings(arguments, environment=environment or {})


def test_without_anything_the_defaults() -> None:
    assert load() == Settings()


def test_every_setting_has_a_variable() -> None:
    settings = load(
        {
            "DUETIME_DATABASE": "postgresql://db/jobs",
            "DUETIME_LISTEN_DATABASE": "postgresql://direct/jobs",
            "DUETIME_SCHEMA": "jobs",
            "DUETIME_PREFIX": "jobs_",
            "DUETIME_NOTIFY": "off",
            "DUETIME_PREPARE": "no",
            "DUETIME_POOL_SIZE": "9",
            "DUETIME_DATABASE_TIMEOUT": "5s",
            "DUETIME_QUEUES": "mail, default,,",
            "DUETIME_CONCURRENCY": "7",
            "DUETIME_BATCH": "100",
            "DUETIME_LEASE": "1m",
            "DUETIME_HEARTBEAT": "15s",
            "DUETIME_BLOCK_LIMIT": "20s",
            "DUETIME_POLL": "1m30s",
            "DUETIME_GRACE": "0s",
            "DUETIME_RESCUE_EVERY": "1s",
            "DUETIME_PRUNE_EVERY": "5m",
            "DUETIME_RETENTION": "completed=1d, dead=1w",
            "DUETIME_SCHEDULE_FALLBACK": "on",
            "DUETIME_SERVICE": "shop",
            "DUETIME_RELEASE": "42",
            "DUETIME_LOG_LINES": "7",
            "DUETIME_REDACT_NAMES": "pin, token",
            "DUETIME_MAX_ATTEMPTS": "5",
            "DUETIME_RETRY_BASE": "30s",
            "DUETIME_MAX_ARGS_BYTES": "4096",
            "DUETIME_MIGRATE": "TRUE",
            "DUETIME_READ_ONLY": "on",
            "DUETIME_REPLICA_DATABASE": "postgresql://127.0.0.1/replica",
            "DUETIME_SESSION_IDLE": "30m",
            "DUETIME_SESSION_LIFETIME": "12h",
        }
    )

    changed = [
        field
        for field in Settings.__struct_fields__
        if getattr(settings, field) == getattr(Settings(), field)
    ]
    assert changed == []
    assert settings.queues == ("mail", "default")
    assert settings.poll == timedelta(seconds=90)
    assert settings.retention == DEFAULT_RETENTION | {
        "completed": timedelta(days=1),
        "dead": timedelta(weeks=1),
    }
    assert settings.migrate is True
    assert settings.notify is False


def test_arguments_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "duetime.toml"
    file.write_text('concurrency = 1\nbatch = 1\npool_size = 1\nqueues = ["a", "b"]\n')
    environment = {"DUETIME_CONFIG": str(file), "DUETIME_BATCH": "2", "DUETIME_POOL_SIZE": "2"}

    settings = load(environment, pool_size=3, lease=None)

    assert (settings.concurrency, settings.batch, settings.pool_size) == (1, 2, 3)
    assert settings.queues == ("a", "b")
    assert settings.lease == Settings().lease


def test_an_empty_variable_is_as_good_as_none() -> None:
    assert load({"DUETIME_LEASE": ""}) == Settings()


def test_a_pyproject_has_a_table_of_ours(tmp_path: Path) -> None:
    file = tmp_path / "pyproject.toml"
    file.write_text(
        '[project]\nname = "shop"\n[tool.duetime]\nlease = "1m"\n'
        '[tool.duetime.retention]\ncompleted = "2d"\n'
    )

    settings = load_settings({}, environment={}, file=file)

    assert settings.lease == timedelta(minutes=1)
    assert settings.retention["completed"] == timedelta(days=2)


def test_a_number_is_seconds_wherever_it_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "duetime.toml"
    file.write_text("poll = 0.5\n[retention]\ncompleted = 3600\n")
    environment = {"DUETIME_CONFIG": str(file), "DUETIME_LEASE": "2.5", "DUETIME_BLOCK_LIMIT": "5"}

    settings = load(environment, grace=10)

    assert settings.poll == timedelta(milliseconds=500)
    assert settings.retention["completed"] == timedelta(hours=1)
    assert settings.lease == timedelta(seconds=2.5)
    assert settings.block_limit == timedelta(seconds=5)
    assert settings.grace == timedelta(seconds=10)


@pytest.mark.parametrize(
    ("lease", "heartbeat", "rescue_every"),
    [("30s", 10, 2), ("5m", 10, 2), ("3s", 1, 1), ("6s", 2, 2), ("300ms", 0.1, 0.1)],
)
def test_heartbeat_and_rescue_follow_the_lease(
    lease: str, heartbeat: float, rescue_every: float
) -> None:
    settings = load(lease=lease)

    assert settings.heartbeat == timedelta(seconds=heartbeat)
    assert settings.rescue_every == timedelta(seconds=rescue_every)


def test_what_is_given_does_not_follow_the_lease() -> None:
    settings = load({"DUETIME_HEARTBEAT": "500ms"}, lease="3s", rescue_every="5s")

    assert settings.heartbeat == timedelta(milliseconds=500)
    assert settings.rescue_every == timedelta(seconds=5)


def test_another_lease_takes_the_default_heartbeat_with_it() -> None:
    changed = change_settings(load(), {"lease": "3s", "grace": None})

    assert (changed.heartbeat, changed.rescue_every) == (timedelta(seconds=1), timedelta(seconds=1))
    assert changed.grace == Settings().grace


def test_another_lease_leaves_the_given_heartbeat() -> None:
    with pytest.raises(SettingsError, match=r"heartbeat \(5s\) must be at most half of the lease"):
        change_settings(load(heartbeat="5s"), {"lease": "3s"})


@pytest.mark.parametrize("option", ["queue", "database", "pool_size"])
def test_a_worker_refuses_an_option_that_it_would_not_use(option: str) -> None:
    app = Duetime("sqlite:///never.db")

    with pytest.raises(InvalidInput, match=f"A worker has no option '{option}'. It has: queues, "):
        app.worker_thread(**cast("Any", {option: "mail"}))


class TestRefused:
    @pytest.mark.parametrize(
        ("name", "value", "reason"),
        [
            ("concurency", 5, "Unknown setting 'concurency'. The settings are: batch, block_limit"),
            ("concurrency", "many", "concurrency= must be an integer such as 50, got 'many'"),
            ("concurrency", 2.5, "concurrency= must be an integer such as 50, got 2.5"),
            ("concurrency", True, "concurrency= must be an integer such as 50, got True"),
            ("concurrency", 0, "concurrency must be at least 1, got 0"),
            ("batch", 1001, "batch must be at most 1000, got 1001"),
            ("concurrency", 10_001, "concurrency must be at most 10000, got 10001"),
            ("pool_size", 1001, "pool_size must be at most 1000, got 1001"),
            ("max_attempts", 10_001, "max_attempts must be at most 10000, got 10001"),
            ("pool_size", -1, "pool_size must be at least 1"),
            ("max_attempts", 0, "max_attempts must be at least 1"),
            ("max_args_bytes", 0, "max_args_bytes must be at least 1"),
            ("lease", True, "lease= must be a number of seconds, a string such as"),
            ("lease", "soon", "lease= 'soon' is not a duration"),
            ("lease", -2, "lease= must not be negative, got -2"),
            ("lease", float("nan"), "lease= must be a number of seconds, got nan"),
            ("lease", 0, "lease must be greater than zero"),
            ("heartbeat", "16s", "heartbeat (16s) must be at most half of the lease (30s)"),
            ("heartbeat", "0s", "heartbeat must be greater than zero"),
            ("block_limit", "0s", "block_limit must be greater than zero"),
            ("rescue_every", "0s", "rescue_every must be greater than zero"),
            ("prune_every", "0s", "prune_every must be greater than zero"),
            ("database_timeout", "0s", "database_timeout must be greater than zero"),
            ("poll", "11m", "poll must be at most 10m, got 11m"),
            ("poll", "0s", "poll must be greater than zero"),
            ("queues", "", "queues must contain at least one queue"),
            ("queues", [], "queues must contain at least one queue"),
            ("queues", 5, "queues= must be a list of names or a comma-separated string, got 5"),
            ("notify", "maybe", "notify= must be on or off, got 'maybe'"),
            ("retention", {"finished": "1d"}, "'finished' has no retention"),
            ("retention", "completed=never", "retention of completed 'never' is not a duration"),
            ("retention", "completed", "retention of completed '' is not a duration"),
            ("retention", 5, "retention= must map"),
        ],
    )
    def test_an_argument(self, name: str, value: Any, reason: str) -> None:
        with pytest.raises(SettingsError) as caught:
            load(**{name: value})

        assert reason in str(caught.value)

    def test_a_variable_is_named(self) -> None:
        with pytest.raises(SettingsError, match="DUETIME_LEASE 'soon' is not a duration"):
            load({"DUETIME_LEASE": "soon"})

    @pytest.mark.parametrize(
        ("content", "reason"),
        [
            (b"lease = ", "is not valid TOML"),
            (b'lease = "\xff"', "is not valid TOML"),
            (b"lease = true", "duetime.toml: lease must be a number of seconds, a string"),
            (b"lease = nan", "duetime.toml: lease must be a number of seconds, got nan"),
            (b"leese = '1m'", "unknown setting 'leese'"),
            (b"[tool.duetime]\nleese = '1m'", "unknown setting 'leese'"),
            (b"tool = 5", r"the table \[tool\.duetime\]"),
            (b"[tool]\nduetime = 5", r"the table \[tool\.duetime\]"),
        ],
    )
    def test_a_file(self, tmp_path: Path, content: bytes, reason: str) -> None:
        file = tmp_path / "duetime.toml"
        file.write_bytes(content)

        with pytest.raises(SettingsError, match=reason):
            load_settings({}, environment={}, file=file)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(SettingsError, match=r"none\.toml cannot be read"):
            load({"DUETIME_CONFIG": str(tmp_path / "none.toml")})
