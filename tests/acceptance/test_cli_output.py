"""What commands print: nothing that was stored controls the terminal; errors are JSON for machines;
a reader that has gone is no error."""

from __future__ import annotations

import asyncio
import io
import pty
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, redirect_stderr, redirect_stdout, suppress
from datetime import UTC, datetime
from pathlib import Path
from unittest.mock import patch

import msgspec
import pytest

from duetime import Duetime
from duetime.cli import main
from tests.acceptance.command import DUETIME, duetime, enqueue, environment, new_job
from tests.conftest import Backend
from tests.waiting import until, until_true

DUE = datetime(2030, 1, 1, tzinfo=UTC)
ODD = "x\x1b[2J\x9b31m\x7f\u202e\ry"
"""Clears the screen, turns it red, deletes, reverses, goes back to the beginning of the line."""


@pytest.fixture
def backend(tmp_path: Path, sqlite_tables: Path) -> Backend:
    """One is enough: what is printed does not depend on the database."""
    shutil.copy(sqlite_tables, tmp_path / "duetime.db")
    return Backend("sqlite", f"sqlite:///{tmp_path}/duetime.db")


def run_here(url: str, *arguments: str) -> str:
    """What `duetime …` prints in this process, as a terminal that speaks Unicode gets it."""
    printed = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")

    def run() -> None:
        with (
            redirect_stdout(printed),
            redirect_stderr(printed),
            patch.object(sys, "argv", ["duetime", "--database", url, *arguments]),
            patch.object(sys, "stdin", io.StringIO("n\n")),
            pytest.raises(SystemExit),
        ):
            main()

    with ThreadPoolExecutor(1) as beside_our_loop:
        beside_our_loop.submit(run).result()
    printed.seek(0)
    return printed.read()


def on_terminal(url: str, *arguments: str) -> str:
    terminal, theirs = pty.openpty()
    with open(theirs, "wb") as stream:  # noqa: PTH123 - a file descriptor
        subprocess.run(
            [str(DUETIME), *arguments], stdout=stream, env=environment(url), check=True, timeout=60
        )
    with open(terminal, "rb", buffering=0) as stream:  # noqa: PTH123
        return stream.read(100_000).decode()


def without_reader(url: str, *arguments: str, errors: int) -> tuple[int, bytes]:
    """Run a command whose output is closed; return its exit code and what it told beside."""
    process = subprocess.Popen(
        [str(DUETIME), *arguments], stdout=subprocess.PIPE, stderr=errors, env=environment(url)
    )
    try:
        assert process.stdout is not None
        process.stdout.close()
        told = b"" if process.stderr is None else process.stderr.read()
        return process.wait(20), told
    finally:
        process.kill()
        process.wait()


def controls(text: str) -> set[str]:
    return {
        c for c in text if unicodedata.category(c) in ("Cc", "Cf", "Zl", "Zp") and c not in "\n\t"
    }


async def fill(app: Duetime) -> None:
    """Odd text in whatever can be listed and shown."""

    @app.task(name=f"fail{ODD}", max_attempts=1)
    async def fail(text: str) -> None:
        raise ValueError(text)

    await fail.using(key=f"key{ODD}").enqueue(text=ODD)
    async with app.worker(name=f"worker{ODD}"):

        async def ended() -> bool:
            return bool(await app.jobs.list(state="dead"))

        await until(ended)
    await enqueue(
        app, msgspec.structs.replace(new_job(f"task{ODD}", text=ODD), queue=f"q{ODD}", key=ODD)
    )
    await app.queues.pause(f"q{ODD}", by=ODD, reason=ODD)
    await app.schedules.put(ODD, f"task{ODD}", "0 9 * * *", args={"a": ODD}, by=ODD)
    await app.schedules[ODD].pause(reason=ODD, by=ODD)
    await app.schedules.presets.put(ODD, "0 9 * * *", description=ODD)
    await app.scopes.put(ODD, remind=["-1h"], by=ODD)
    await app.subjects.put(ODD, scope=ODD, due=DUE, recipients=[ODD], data={"title": ODD}, by=ODD)
    await app.recipients.put(ODD, channels={"console": ODD}, by=ODD)


COMMANDS: list[tuple[str, ...]] = [
    ("jobs", "list"),
    ("jobs", "get", "1"),
    ("jobs", "get", "2"),
    ("jobs", "explain", "1"),
    ("jobs", "explain", "2"),
    ("jobs", "cancel", "99", "--reason", ODD),
    ("jobs", "list", "--queue", ODD),
    ("queues",),
    ("queues", "resume", ODD),
    ("workers",),
    ("schedules",),
    ("schedules", "get", ODD),
    ("schedules", "history", ODD),
    ("schedules", "explain", ODD),
    ("schedules", "preview", ODD),
    ("audit", "list"),
    ("schedules", "presets"),
    ("schedules", "pause", ODD, "--by", ODD),
    ("schedules", "get", f"no{ODD}"),
    ("scopes", "get", ODD),
    ("scopes", "get", f"no{ODD}"),
    ("subjects",),
    ("subjects", "get", ODD),
    ("subjects", "delete", ODD),
    ("reminders", "list"),
    ("reminders", "explain", "1"),
    ("queues", "explain", f"q{ODD}"),
    ("subjects", "explain", ODD),
    ("scopes", "explain", ODD),
    ("reminders", "preview", "--days", "3000"),
    ("recipients",),
    ("recipients", "get", ODD),
    ("recipients", "delete", ODD),
    ("audit", "list", f"subject:{ODD}"),
    ("audit", "list", f"recipient:{ODD}"),
    ("tables", "put", f"no{ODD}", "--ref", ODD, "--due", ODD),
    ("jobs", ODD),
    ("jobs", "get", ODD),
    ("jobs", "list", "--state", ODD),
    ("worker", "--app", f"no{ODD}:app"),
    ("db", "status", "--database", f"mysql://{ODD}"),
    ("import", ODD),
]


async def test_nothing_that_is_stored_controls_the_terminal(backend: Backend, app: Duetime) -> None:
    await fill(app)
    for command in COMMANDS:
        for options in ((), ("--json",)):
            printed = run_here(backend.url, *command, *options)

            assert printed
            assert not controls(printed), command


async def test_an_ical_file_is_escaped_on_a_terminal_only(backend: Backend, app: Duetime) -> None:
    await app.subjects.put("a", due=DUE, data={"title": "x\x9by"})

    piped = duetime(backend.url, "subjects", "export")
    shown = on_terminal(backend.url, "subjects", "export")

    assert "SUMMARY:x\x9by" in piped.out
    assert "SUMMARY:x\\x9by" in shown


@pytest.mark.parametrize(
    ("command", "code", "exit_code"),
    [
        (("jobs", "get", "999"), "job_not_found", 1),
        (("schedules", "get", "nothing"), "schedule_not_found", 1),
        (("subjects", "get", "nothing"), "subject_not_found", 1),
        (("jobs", "get", "x"), "usage", 2),
        (("jobs", "nothing"), "usage", 2),
        (("jobs", "list", "--database", "mysql://ann:hunter2@db/x"), "invalid_database_url", 1),
        (("jobs", "list", "--database", "sqlite:///none.db"), "schema_mismatch", 1),
        (("jobs", "list", "--database", "postgresql://127.0.0.1:1/"), "database_unreachable", 1),
        (("db", "downgrade", "--to", "0"), "not_confirmed", 1),
        (("subjects", "import", "no.ics"), "error", 1),
    ],
)
async def test_with_json_an_error_is_json_too(
    backend: Backend, app: Duetime, command: tuple[str, ...], code: str, exit_code: int
) -> None:
    answer = duetime(backend.url, *command, "--json", given="n\n")

    assert answer.code == exit_code
    assert answer.json["error"]["code"] == code
    assert answer.json["error"]["message"] == answer.err.splitlines()[-1].removeprefix("Error: ")


async def test_with_json_each_job_that_cannot_be_changed_has_its_code(
    backend: Backend, app: Duetime
) -> None:
    [job_id] = await enqueue(app, new_job("shop.send", item_id=1))

    answer = duetime(backend.url, "jobs", "requeue", str(job_id), "999", "--json")

    assert answer.code == 1
    assert [job["code"] for job in answer.json] == ["illegal_transition", "job_not_found"]


@pytest.mark.parametrize("command", ["jobs list --limit 5000", "jobs", "jobs get 1", "--help"])
async def test_a_reader_that_has_gone_is_no_error(
    backend: Backend, app: Duetime, command: str
) -> None:
    await enqueue(app, *[new_job("shop.send", item_id=n) for n in range(2000)])

    for errors in (subprocess.PIPE, subprocess.STDOUT):
        code, told = without_reader(backend.url, *command.split(), errors=errors)

        assert code in ((0, 1) if command == "--help" else (0,))
        assert told == b""


async def test_an_error_shows_no_password(backend: Backend, app: Duetime) -> None:
    for command in (
        ("jobs", "list", "postgresql://ann:hunter2@db/shop"),
        ("import", "django-celery-beat", "postgresql://ann:hunter2%zz@127.0.0.1:1/shop"),
        ("import", "postgresql://ann:hunter2@127.0.0.1:1/shop"),
    ):
        answer = duetime(backend.url, *command, "--json")

        assert answer.code in (1, 2)
        assert "hunter2" not in answer.out + answer.err


def test_ctrl_c_claims_nothing_about_what_was_changed(
    backend: Backend, capsys: pytest.CaptureFixture[str]
) -> None:
    """Some jobs may be cancelled already: only a question that was answered with no changes
    nothing."""
    arguments = ["duetime", "jobs", "list", "--database", backend.url]
    with (
        patch.object(sys, "argv", arguments),
        patch("duetime.cli.target.Target.run", side_effect=KeyboardInterrupt),
        pytest.raises(SystemExit) as left,
    ):
        main()

    assert left.value.code == 130
    assert capsys.readouterr().err.splitlines()[-1] == "Error: Interrupted."


def test_ctrl_c_ends_a_command_that_waits_for_a_locked_file(backend: Backend) -> None:
    path = backend.url.removeprefix("sqlite:///")
    command = [str(DUETIME), "queues", "pause", "mail"]
    with ExitStack() as stack:
        writer = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        writer.execute("begin immediate")
        process = stack.enter_context(
            subprocess.Popen(
                command, stderr=subprocess.PIPE, text=True, env=environment(backend.url)
            )
        )
        stack.callback(process.kill)
        asyncio.run(until_true(lambda: sleeps_of_threads(process.pid) > 50))
        process.send_signal(signal.SIGINT)
        # It would give up after 15 seconds.
        _, said = process.communicate(timeout=10)

    assert process.returncode == 130
    assert said.splitlines()[-1] == "Error: Interrupted."


def test_ctrl_c_ends_a_command_that_waits_to_open_a_file(backend: Backend) -> None:
    path = backend.url.removeprefix("sqlite:///")
    with ExitStack() as stack:
        writer = stack.enter_context(closing(sqlite3.connect(path, isolation_level=None)))
        writer.execute("pragma journal_mode = delete")
        writer.execute("begin exclusive")
        process = stack.enter_context(
            subprocess.Popen(
                [str(DUETIME), "jobs", "list"],
                stderr=subprocess.PIPE,
                text=True,
                env=environment(backend.url),
            )
        )
        stack.callback(process.kill)
        asyncio.run(until_true(lambda: path in files_of(process.pid)))
        process.send_signal(signal.SIGINT)
        # It would give up after 30 seconds.
        _, said = process.communicate(timeout=10)

    assert process.returncode == 130
    assert said.splitlines()[-1] == "Error: Interrupted."


def files_of(process: int) -> list[str]:
    """The files that a process has opened."""
    found = []
    for file in Path(f"/proc/{process}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.append(str(file.readlink()))
    return found


def sleeps_of_threads(process: int) -> int:
    """How often the thread of a process that slept most often did, but for the first thread: one
    that waits for a lock of SQLite sleeps and tries again."""
    found = [0]
    for thread in Path(f"/proc/{process}/task").iterdir():
        if thread.name != str(process):
            with suppress(FileNotFoundError, ProcessLookupError):
                status = (thread / "status").read_text()
                found += map(int, re.findall(r"\nvoluntary_ctxt_switches:\s+(\d+)", status))
    return max(found)


@pytest.mark.parametrize("command", ["jobs list", "jobs list --json", "--help"])
def test_output_that_cannot_be_written_is_an_error_in_one_line(
    backend: Backend, command: str
) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [str(DUETIME), *command.split()],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            env=environment(backend.url),
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr == "Error: The output could not be written: No space left on device.\n"


def test_a_closed_output_is_no_error(backend: Backend) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f"exec {DUETIME} jobs list >&-"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(backend.url),
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")


async def test_the_question_of_a_bulk_action_counts_what_it_changes(
    backend: Backend, app: Duetime
) -> None:
    await enqueue(app, *[new_job("shop.send", item_id=n) for n in range(3)])
    [cancelled, *_] = await app.jobs.list()
    await app.jobs.cancel(cancelled.id)

    requeue = duetime(backend.url, "jobs", "requeue-all", given="n\n")
    chosen = duetime(backend.url, "jobs", "requeue-all", "--state", "cancelled", given="n\n")
    cancel = duetime(backend.url, "jobs", "cancel-all", "--queue", "default", given="n\n")

    assert requeue.out.startswith("There are: none.")
    assert chosen.out.startswith("There are: 1 cancelled.")
    assert cancel.out.startswith("There are: 2 pending.")
