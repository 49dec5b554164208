"""An app without Python: a TOML file with settings and webhook tasks.

`duetime worker --app jobs.toml` runs it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from duetime.app import Duetime
from duetime.domain.jobs.retry import Delays
from duetime.errors import InvalidInput, SettingsError
from duetime.settings import load_settings, read_settings_file

_FROM_ENVIRONMENT = "env:"


class _WebhookTask(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What a table of a webhook task may contain: the arguments of `app.webhook_task`."""

    url: str
    secrets: list[str]
    headers: dict[str, str] | None = None
    allow_private: bool = False
    allow: list[str] = []
    ports: list[int] | None = None
    max_retry_after: str | float | None = None
    queue: str | None = None
    priority: int | None = None
    retry: list[str | float] | None = None
    max_attempts: int | None = None
    timeout: str | float | None = None
    expires: str | float | None = None
    keep_result: bool | None = None


def load_app_file(path: Path) -> Duetime:
    """Return the app that a file describes; raise `SettingsError` if something in it is wrong."""
    app = Duetime()
    app.settings = load_settings(file=path, other_tables=["webhooks"])
    tables = read_settings_file(path).get("webhooks", {})
    if not isinstance(tables, dict):
        raise SettingsError(f"{path}: webhooks must be tables such as [webhooks.charge].")
    for name, table in tables.items():
        try:
            declared = msgspec.convert(table, _WebhookTask)
            app.webhook_task(name, **_arguments(declared))
        except (msgspec.ValidationError, InvalidInput) as error:
            raise SettingsError(f'{path}: [webhooks."{name}"]: {error}') from None
    return app


def _arguments(declared: _WebhookTask) -> dict[str, Any]:
    given = {
        name: value for name, value in msgspec.structs.asdict(declared).items() if value is not None
    }
    given["secrets"] = [_value(secret) for secret in declared.secrets]
    if declared.headers is not None:
        given["headers"] = {name: _value(value) for name, value in declared.headers.items()}
    if declared.retry is not None:
        given["retry"] = Delays(*declared.retry)
    return given


def _value(text: str) -> str:
    """Return the text, or what `env:NAME` stands for: secrets need not be in the file."""
    if not text.startswith(_FROM_ENVIRONMENT):
        return text
    variable = text.removeprefix(_FROM_ENVIRONMENT)
    if not os.environ.get(variable):
        raise InvalidInput(f"The environment variable {variable} is not set.")
    return os.environ[variable]
