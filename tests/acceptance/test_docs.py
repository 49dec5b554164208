"""The manual tells the truth: its programs run, and its lists are complete."""

from __future__ import annotations

import re
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import click
import pytest

import duetime
from duetime import JobState, errors
from duetime.cli import cli
from duetime.domain.duration import parse_duration
from duetime.domain.findings import FINDINGS
from duetime.domain.flows.explain import FLOW_SENTENCES
from duetime.domain.jobs.explain import JOB_SENTENCES
from duetime.domain.jobs.explain_queue import QUEUE_SENTENCES
from duetime.domain.reasons import REASONS
from duetime.domain.reminders.explain import REMINDER_SENTENCES
from duetime.domain.reminders.explain_scope import LEVEL_SENTENCES, SCOPE_SENTENCES
from duetime.domain.reminders.explain_subject import SUBJECT_SENTENCES
from duetime.domain.schedules.explain import SCHEDULE_SENTENCES, TICK_SENTENCES
from duetime.domain.stats.problems import PROBLEM_SENTENCES
from duetime.settings import Settings
from duetime.wiring import make_migrator
from tests.acceptance.command import environment

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PROGRAM = re.compile(
    r'^```python title="(\w+\.py)"\n(.*?)^```$(?:\n\n```text title="prints"\n(.*?)^```$)?',
    re.MULTILINE | re.DOTALL,
)
# `guide/testing.md` has pytest's own test: tests/integration/test_testing_guide.py.
PAGES = [
    page
    for page in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))
    if PROGRAM.search(page.read_text()) and page.name != "testing.md"
]
assert PAGES[0].name == "README.md"
LOGGED = re.compile(r'(?:\blog_event|_log|exit_now)\((?:[^")]|\([^)]*\))*?"(\w+)"')


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_program_of_the_page_runs(page: Path, tmp_path: Path) -> None:
    programs = PROGRAM.findall(page.read_text())
    for name, code, _ in programs:
        (tmp_path / name).write_text(code)
    for name, _, prints in programs:
        done = subprocess.run(
            [sys.executable, name],
            capture_output=True,
            text=True,
            cwd=tmp_path,
            env=environment(None),
            timeout=30,
            check=False,
        )

        assert done.returncode == 0, f"{name}:\n{done.stderr}"
        assert not prints or done.stdout == prints, name


def test_migrations_page_leads_to_the_schema_that_the_package_needs() -> None:
    page = (DOCS / "guide" / "migrations.md").read_text()
    postgres, sqlite = [
        len(make_migrator(Settings(database=url)).migrations)
        for url in ("postgresql://", "sqlite:///shop.db")
    ]

    assert f"`to=` is {postgres} on PostgreSQL; on SQLite it is {sqlite}." in page
    assert f"duetime.upgrade(op, to={postgres})" in page
    assert f"DuetimeUpgrade(to={postgres})" in page


def test_patroni_of_the_manual_may_connect_to_its_own_server() -> None:
    page = (DOCS / "guide" / "failover.md").read_text()
    [config] = re.findall(r"^```yaml title=.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)

    # It listens on every address, so Patroni connects to localhost.
    assert 'listen: "0.0.0.0:5432"' in config
    assert "- host all all 127.0.0.1/32 " in config
    assert "- host replication replicator 127.0.0.1/32 " in config


def test_every_setting_is_in_the_manual() -> None:
    assert missing("settings", Settings.__struct_fields__) == []


@pytest.mark.parametrize("name", Settings.__struct_fields__)
def test_the_manual_states_the_default_of_a_setting(name: str) -> None:
    page = (DOCS / "reference" / "settings.md").read_text()
    [written] = re.findall(
        rf"^\| `{name}` \| `DUETIME_{name.upper()}` \| (.*?) \|", page, re.MULTILINE
    )
    default = getattr(Settings(), name)

    match default:
        case timedelta():
            # Of what follows from another setting, the page states the most.
            assert parse_duration(written.split("at most ")[-1].strip()) == default
        case dict():
            ages = dict(pair.split("=") for pair in written.strip("`").split(", "))
            assert {key: parse_duration(age) for key, age in ages.items()} == default
        case bool():
            assert written == ("on" if default else "off")
        case tuple():
            assert written == f"`{','.join(default)}`"
        case int():
            assert written == str(default)
        case str():
            assert written == (f"`{default}`" if default else "empty")
        case None:
            assert written in ("the same", "on for SQLite only")


def test_the_help_of_a_worker_states_the_defaults() -> None:
    worker = cli.get_command(click.Context(cli), "worker")
    assert worker is not None
    told = {
        option.name: found[1]
        for option in worker.params
        if isinstance(option, click.Option)
        and (found := re.search(r"\[default: (?:.*at most )?(\S+?)\]", option.help or ""))
    }

    defaults = Settings()
    for name in ("grace", "lease", "heartbeat", "poll"):
        assert parse_duration(told[name]) == getattr(defaults, name), name
    assert told["concurrency"] == str(defaults.concurrency)
    assert told["queues"] == ",".join(defaults.queues)


def test_every_public_name_is_in_the_manual() -> None:
    pages = ("python", "channels", "errors")
    assert set.intersection(*(set(missing(page, duetime.__all__)) for page in pages)) == set()


def test_every_error_is_in_the_manual() -> None:
    ours = [name for name, value in vars(errors).items() if hasattr(value, "code")]
    assert missing("errors", ours) == []


def test_every_state_is_in_the_manual() -> None:
    assert missing("tables", [state.value for state in JobState]) == []


def test_every_command_and_option_is_in_the_manual() -> None:
    assert missing("cli", command_words(cli)) == []


async def test_every_metric_is_in_the_manual(tmp_path: Path) -> None:
    app = duetime.Duetime(f"sqlite:///{tmp_path}/duetime.db")
    text = await app.metrics()
    await app.close()
    names = re.findall(r"^# TYPE (\w+)", text, re.MULTILINE)

    assert len(names) > 25
    assert missing("metrics", names) == []


def test_every_log_event_is_in_the_manual() -> None:
    source = "".join(file.read_text() for file in (ROOT / "src" / "duetime").rglob("*.py"))
    events = {name for name in LOGGED.findall(source) if "_" in name or name == "starting"}

    assert len(events) > 30
    assert missing("events", sorted(events)) == []


def test_every_reason_is_in_the_manual_with_its_sentence() -> None:
    page = (DOCS / "reference" / "reasons.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| `(.*)` \|$", page, re.MULTILINE)
    tables = (
        REASONS, JOB_SENTENCES, FLOW_SENTENCES, QUEUE_SENTENCES, SCHEDULE_SENTENCES, TICK_SENTENCES,
        REMINDER_SENTENCES, SUBJECT_SENTENCES, SCOPE_SENTENCES, LEVEL_SENTENCES,
        PROBLEM_SENTENCES,
    )  # fmt: skip

    assert rows == [row for table in tables for row in table.items()]


def test_every_finding_is_in_the_manual_with_its_sentence_and_advice() -> None:
    page = (DOCS / "reference" / "findings.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (\w+) \| `(.*)` \| (.*) \|$", page, re.MULTILINE)

    assert rows == [(code, *text) for code, text in FINDINGS.items()]


def test_every_reason_that_is_stored_has_a_sentence() -> None:
    source = ROOT / "src" / "duetime"
    python = "".join(file.read_text() for file in source.rglob("*.py"))
    sql = "".join(file.read_text() for file in source.rglob("*.sql"))
    made = set(re.findall(r"\bReason(?:\.of)?\(\s*\"(\w+)\"", python))
    made |= set(re.findall(r"'code', '(\w+)'", sql))
    made |= set(re.findall(r'"code": "(\w+)"', sql))

    assert made - {"facts", "from_a_newer_version", "unreadable_reason"} <= REASONS.keys()
    assert len(made) > 20


def missing(page: str, names: list[str] | tuple[str, ...]) -> list[str]:
    """Those of the names that the page does not show as code."""
    text = (DOCS / "reference" / f"{page}.md").read_text()
    return [name for name in names if not re.search(rf"`[^`\n]*\b{re.escape(name)}\b", text)]


def command_words(command: click.Command) -> list[str]:
    """The names of its commands and of the options that are shown."""
    words = [
        name.lstrip("-")
        for parameter in command.params
        if isinstance(parameter, click.Option) and not parameter.hidden
        for name in parameter.opts
    ]
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            assert inner is not None
            words += [name, *command_words(inner)]
    return words
