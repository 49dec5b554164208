"""An app without Python: a TOML file with settings and webhook tasks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import standardwebhooks

from duetime import Delays, Duetime
from duetime.errors import SettingsError
from duetime.integrations.app_file import load_app_file
from tests.acceptance.command import duetime, enqueue, new_job, worker
from tests.channels.http_server import HttpServer
from tests.channels.receivers import SECRET
from tests.waiting import until_true


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "jobs.toml"


def webhook(*lines: str) -> str:
    """A file that declares one webhook task."""
    return "\n".join(
        [
            '[webhooks."billing.charge"]',
            'url = "https://x.example/"',
            f'secrets = ["{SECRET}"]',
            *lines,
        ]
    )


@pytest.fixture
async def server() -> AsyncIterator[HttpServer]:
    async with HttpServer().listening() as server:
        yield server


@pytest.fixture
def local(file: Path, server: HttpServer) -> Path:
    """A file whose service is the test's."""
    declared = webhook('allow = ["127.0.0.1"]').replace("https://x.example/", server.url)
    file.write_text('poll = "50ms"\n' + declared)
    return file


async def test_a_worker_runs_webhook_tasks_of_a_file(
    local: Path, server: HttpServer, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/jobs.db"
    app = Duetime(url)
    await enqueue(app, new_job("billing.charge", order=7))
    with worker(url, "--app", str(local)):
        await until_true(lambda: server.requests)
    await app.close()

    [request] = server.requests
    assert request.json["data"]["args"] == {"order": 7}
    assert standardwebhooks.Webhook(SECRET).verify(request.body, request.headers)


def test_commands_know_the_tasks_of_a_file(file: Path, tmp_path: Path) -> None:
    file.write_text(f'database = "sqlite:///{tmp_path}/jobs.db"\n' + webhook())
    app = ("--app", str(file))

    assert duetime(None, "db", "init", *app).code == 0
    known = duetime(None, "schedules", "put", "n", "billing.charge", "0 3 * * *", *app)
    unknown = duetime(None, "schedules", "put", "m", "billing.refund", "0 3 * * *", *app)

    assert "The app has no task billing.charge" not in known.out
    assert "The app has no task billing.refund" in unknown.out


def test_options_are_those_of_a_webhook_task(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BILLING_SECRET", SECRET)
    file.write_text(
        """
        [tool.duetime]
        max_args_bytes = 100
        [tool.duetime.webhooks."billing.charge"]
        url = "https://billing.example.com/jobs"
        secrets = ["env:BILLING_SECRET"]
        headers = {authorization = "env:BILLING_SECRET"}
        queue = "billing"
        priority = 2
        timeout = 45
        retry = ["0s", "10s", 300]
        """
    )

    options = load_app_file(file).tasks["billing.charge"].options

    assert isinstance(options.retry, Delays)
    assert (options.queue, options.priority, options.max_attempts) == ("billing", 2, 3)
    assert options.timeout is not None
    assert options.timeout.total_seconds() == 45
    assert options.max_args_bytes == 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("webhooks = 7", "webhooks must be tables"),
        ("webhook = {}", "unknown setting 'webhook'"),
        ("[webhooks.charge]", "missing required field `url`"),
        (webhook('quue = "mail"'), "unknown field `quue`"),
        (webhook('timeout = "soon"'), "timeout 'soon' is not a duration"),
        (webhook('headers = {a = "env:NOT_SET_ANYWHERE"}'), "NOT_SET_ANYWHERE is not set"),
        (webhook("ports = [22]").replace("x.example", "x.example:80"), "port 80"),
        (webhook().replace("x.example", "ann:hunter2@x.example"), "user name or a password"),
    ],
)
def test_what_is_wrong_in_a_file_is_an_error(file: Path, content: str, message: str) -> None:
    file.write_text(content)

    with pytest.raises(SettingsError) as wrong:
        load_app_file(file)

    assert message in str(wrong.value)
    assert str(file) in str(wrong.value)
    assert SECRET not in str(wrong.value)
    assert "hunter2" not in str(wrong.value)


def test_a_file_that_is_not_there_is_an_error() -> None:
    failed = duetime(None, "jobs", "list", "--app", "nowhere.toml")

    assert "nowhere.toml cannot be read" in failed.error
