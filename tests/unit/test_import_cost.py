"""`from duetime import Duetime` is quick: what an app does not use is not imported."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import click

from duetime.cli import cli

_IMPORT = """
import json, sys, time
began = time.process_time()
import asyncio, msgspec
between = time.process_time()
from duetime import Duetime
ended = time.process_time()
ours = sorted(name for name in sys.modules if name.startswith("duetime."))
print(json.dumps({"libraries": between - began, "ours": ended - between, "modules": ours}))
"""
_MODULES = """
import json, sys
from duetime import Duetime
print(json.dumps(sorted(sys.modules)))
"""
_LATER = {
    "channels", "cli", "database", "engine", "flows", "health", "integrations", "reminders",
    "schedules", "storage", "testing",
}  # fmt: skip
_LIBRARIES = {
    "asyncio", "click", "concurrent", "http", "jinja2", "psycopg", "socket", "sqlite3", "ssl",
    "subprocess", "tomllib", "zoneinfo",
}  # fmt: skip


def run(code: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    return json.loads(done.stdout)


def test_import_loads_no_part_that_is_not_used() -> None:
    loaded = run(_MODULES)
    ours = {name.split(".")[1] for name in loaded if name.startswith("duetime.")}

    assert ours & _LATER == set()
    assert {"app", "settings"} <= ours


def test_import_loads_no_library_that_is_not_used() -> None:
    loaded = {name.split(".")[0] for name in run(_MODULES)}

    assert loaded & _LIBRARIES == set()
    assert "msgspec" in loaded


def test_import_costs_less_than_that_of_asyncio_and_msgspec() -> None:
    best = min((run(_IMPORT) for _ in range(3)), key=lambda cost: float(cost["ours"]))

    # About 0.4 of it: 15 of 50 ms on a machine of its own. CPU time, so that load costs little.
    assert best["ours"] < 0.8 * best["libraries"]
    assert best["ours"] < 0.3


def test_help_imports_no_command_and_tells_what_each_says_of_itself() -> None:
    loaded = run(
        "import contextlib, io, json, sys\n"
        "from duetime.cli import cli\n"
        "with contextlib.redirect_stdout(io.StringIO()) as out:\n"
        "    cli.main(['--help'], standalone_mode=False)\n"
        "print(json.dumps([out.getvalue(), sorted(m for m in sys.modules if 'duetime.' in m)]))"
    )
    shown, modules = " ".join(loaded[0].split()), loaded[1]
    root = click.Context(cli)
    commands = {name: cli.get_command(root, name) for name in cli.list_commands(root)}

    assert [name for name in modules if name.startswith("duetime.cli.")] == [
        "duetime.cli.output",
        "duetime.cli.target",
    ]
    assert len(commands) > 10
    for name, command in commands.items():
        assert command is not None
        assert command.name == name
        assert f"{name} {command.get_short_help_str(limit=500)}" in shown


def test_parts_are_made_once_and_show_in_dir() -> None:
    from duetime import Duetime

    app = Duetime("sqlite:///never.db")

    for part in ("jobs", "queues", "schedules", "scopes", "subjects", "recipients", "reminders"):
        assert part in dir(app)
        assert getattr(app, part) is getattr(app, part)
