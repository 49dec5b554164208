"""`duetime doctor`, as people and scripts use it."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from duetime import Duetime
from tests.acceptance.command import SHOP, Answer, duetime, enqueue, new_job, worker
from tests.conftest import Backend
from tests.waiting import until, until_true


def codes(answer: Answer) -> set[str]:
    return {finding["code"] for finding in answer.json["findings"]}


async def test_a_worker_process_that_is_stopped(backend: Backend, app: Duetime) -> None:
    with worker(backend.url, "--lease", "1s", "--name", "frozen") as process:

        async def stale() -> dict[str, Any] | None:
            answer = await asyncio.to_thread(duetime, backend.url, "doctor", "--json")
            if "write_lock_held" in codes(answer):
                # It was stopped in the middle of a transaction.
                process.signal(signal.SIGCONT)
                await app.queues.pause("any")
                process.signal(signal.SIGSTOP)
            found = [one for one in answer.json["findings"] if one["code"] == "worker_lost"]
            return found[0] if found else None

        await until_true(lambda: process.logged("worker_started"))
        process.signal(signal.SIGSTOP)
        try:
            finding = await until(stale)
        finally:
            process.signal(signal.SIGCONT)

    assert finding is not None
    assert finding["level"] == "warning"
    assert "The worker frozen lost its lease" in finding["message"]


async def test_errors_exit_with_one_and_warnings_only_if_strict(
    backend: Backend, app: Duetime
) -> None:
    calm = await asyncio.to_thread(duetime, backend.url, "doctor")
    strict = await asyncio.to_thread(duetime, backend.url, "doctor", "--strict")
    await enqueue(app, new_job("shop.send", item_id=1))
    wrong = await asyncio.to_thread(duetime, backend.url, "doctor", "--problems", "--json")

    assert calm.code == 0
    assert "warning  workers" in calm.out
    assert "→ Start one: `duetime worker --app MODULE:APP`." in calm.out
    assert strict.code == wrong.code == 1
    assert wrong.json["level"] == "error"
    assert "no_workers" in codes(wrong)
    assert "ok" not in {finding["level"] for finding in wrong.json["findings"]}


async def test_tasks_are_compared_with_the_apps(backend: Backend, app: Duetime) -> None:
    await enqueue(app, new_job("shop.sned", item_id=1))
    with_app = duetime(backend.url, "--app", SHOP, "doctor", "--json")
    without = duetime(backend.url, "doctor", "--json")

    assert "task_missing" in codes(with_app)
    assert "task_missing" not in codes(without)


async def test_stored_text_cannot_control_the_terminal(backend: Backend, app: Duetime) -> None:
    await app.queues.pause("default", reason="\x1b[2Jgone", by="ann\x1b]0;x\x07")
    await enqueue(app, new_job("shop.send", item_id=1))
    async with app.worker():
        answer = await asyncio.to_thread(duetime, backend.url, "doctor")

    assert "\x1b" not in answer.out
    assert "\\x1b[2Jgone" in answer.out


def test_a_database_that_is_not_there(tmp_path: Path) -> None:
    for url, code in (
        ("postgresql://ann:hunter2@127.0.0.1:1/shop", "database_unusable"),
        (f"sqlite:///{tmp_path}/none.db", "database_missing"),
    ):
        answer = duetime(url, "doctor", "--json")

        assert answer.code == 1
        assert codes(answer) == {code}
        assert "hunter2" not in answer.out + answer.err
    assert not (tmp_path / "none.db").exists()


def test_missing_tables_are_not_made(backend: Backend, tmp_path: Path) -> None:
    if not backend.is_postgres:
        (tmp_path / "duetime.db").touch()
    answers = [duetime(backend.url, "doctor", "--json") for _ in range(2)]

    assert [answer.code for answer in answers] == [1, 1]
    assert "schema_missing" in codes(answers[1])


@pytest.mark.parametrize("backend", ["sqlite"], indirect=True)
def test_a_damaged_file(backend: Backend, tmp_path: Path) -> None:
    (tmp_path / "duetime.db").write_bytes(b"x" * 5000)
    answer = duetime(backend.url, "doctor", "--json")

    assert answer.code == 1
    assert codes(answer) == {"database_unusable"}
