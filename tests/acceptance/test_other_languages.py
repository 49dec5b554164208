"""The services of the guide, in the languages that are installed, run jobs of webhook tasks."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from duetime import Duetime, Message, NotSent, Webhook, make_secret
from tests.waiting import until, until_true

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "other-languages.md"
SERVICE = re.compile(r'^```\w+ title="(service\.\w+)"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
COMMANDS = {
    "service.mjs": ["node", "service.mjs"],
    "service.php": ["php", "-S", "127.0.0.1:{port}", "service.php"],
    "service.go": ["./service"],
}
INSTALL = {"service.mjs": "nodejs", "service.php": "php-cli", "service.go": "golang-go"}


@contextmanager
def running(name: str, folder: Path, secret: str) -> Iterator[str]:
    """Run a service of the page on a free port; yield its URL."""
    (folder / name).write_text(dict(SERVICE.findall(PAGE.read_text()))[name])
    if name == "service.go":
        subprocess.run(["go", "build", "-o", "service", name], cwd=folder, check=True, timeout=110)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [word.format(port=port) for word in COMMANDS[name]],
        cwd=folder,
        env={**os.environ, "PORT": str(port), "WEBHOOK_SECRET": secret},
        stderr=subprocess.DEVNULL,
    )
    try:
        yield f"http://127.0.0.1:{port}/jobs"
    finally:
        process.kill()
        process.wait()


def listens(url: str) -> bool:
    try:
        socket.create_connection(("127.0.0.1", int(url.split(":")[2].split("/")[0]))).close()
    except OSError:
        return False
    return True


def test_every_service_of_the_page_is_tested() -> None:
    assert [name for name, _ in SERVICE.findall(PAGE.read_text())] == list(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
async def test_the_service_verifies_jobs_and_reminders_and_answers(
    name: str, tmp_path: Path
) -> None:
    program = "go" if name == "service.go" else COMMANDS[name][0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed: apt-get install {INSTALL[name]}")
    secret, other = make_secret(), make_secret()
    app = Duetime(f"sqlite:///{tmp_path}/jobs.db")
    message = Message(
        key="dtr_1", subject="s", recipient="ann", title="Hi", body="", due_at=datetime.now(UTC)
    )
    with running(name, tmp_path, secret) as url:
        await until_true(lambda: listens(url))
        # While a secret is rotated, a request has the signatures of both.
        trusted = app.webhook_task("trusted", url=url, secrets=[other, secret], allow_private=True)
        forged = app.webhook_task("forged", url=url, secrets=[other], allow_private=True)
        async with app.worker():
            jobs = [
                await trusted.enqueue(order=7, cents=1999),
                await trusted.enqueue(order=0),
                await forged.enqueue(order=7, cents=1999),
            ]

            async def finished() -> bool:
                return all([(await job.get()).finished_at for job in jobs])

            await until(finished)
        paid, unknown, refused = [await job.get() for job in jobs]
        channel = Webhook(url, secrets=[secret], allow_private=True)
        stranger = Webhook(url, secrets=[other], allow_private=True)
        replayed = Webhook(
            url,
            secrets=[secret],
            allow_private=True,
            clock=lambda: datetime.now(UTC) - timedelta(minutes=6),
        )
        await channel.send(message)
        for refusing in (stranger, replayed):
            with pytest.raises(NotSent, match="answered 401: wrong signature"):
                await refusing.send(message)
        for used in (channel, stranger, replayed, app):
            await used.close()

    assert paid.history[-1].result == {"charged": 1999}
    assert (unknown.state.value, unknown.error) == ("dead", "no such order")
    assert (refused.state.value, refused.error_code) == ("dead", "webhook_answered")
    assert refused.facts == {"host": "127.0.0.1", "status": 401, "text": "wrong signature"}
