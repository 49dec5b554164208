"""A crontab: each line is a command at some times. The command becomes an argument of a task."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from duetime.integrations.importing.found import Found, Untranslatable, name_apart, translate_each

HOW_TO_RUN = """\
@app.task(name="run_command", timeout="1h")
def run_command(command: str) -> None:
    subprocess.run(command, shell=True, check=True)
"""
"""A task for `--task run_command`. No shell is run unless somebody writes this."""

_VARIABLE = re.compile(r"""(?:([A-Za-z_]\w*)|"([^"]*)"|'([^']*)')\s*=\s*(.*)""", re.ASCII)
_QUOTED = re.compile(r"""(["'])(.*)\1""")
_ASSIGNMENT = re.compile(r"\w+=\S*", re.ASCII)
_BEFORE = ("cd", "env", "exec", "ionice", "nice", "nohup", "sudo", "time")
_MAX_SLUG_LENGTH = 60


class Line(NamedTuple):
    """A line that runs a command, and what the lines before it set."""

    number: int
    text: str
    variables: dict[str, str]


def translate(
    text: str, *, task: str | None = None, tz: str | None = None, system: bool = False
) -> list[Found]:
    """Translate a crontab; `system`: its lines have a user before the command.

    `task` takes `command: str`. `tz` is the zone of lines before which no CRON_TZ or TZ stands.
    """

    def name_of(line: Line) -> tuple[str, str, str | None]:
        return _slug(_split(line, system)[2]), f"line {line.number}", None

    def one(line: Line) -> dict[str, Any]:
        times, user, command = _split(line, system)
        zone, notes = _zone(line.variables, tz)
        command, more = _command(command)
        notes += more + _notes(line.variables, user, command)
        return {
            "task": task,
            "args": {"command": command},
            "specs": (_times(times),),
            "tz": zone,
            "notes": tuple(notes),
        }

    return name_apart(translate_each(_lines(text), name_of, one))


def _lines(text: str) -> Iterator[Line]:
    variables: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        if found := _VARIABLE.fullmatch(line):
            value = _QUOTED.fullmatch(found[4].strip())
            name = found[1] or found[2] or found[3] or ""
            variables = variables | {name: value[2] if value else found[4].strip()}
        else:
            yield Line(number, line, variables)


def _split(line: Line, system: bool) -> tuple[str, str | None, str]:
    """The times, the user and the command; what is missing is empty."""
    # A minus in front keeps SUSE's and Red Hat's cron from logging.
    words = line.text.removeprefix("-").split(None, 1 if line.text.startswith("@") else 5)
    count = 1 if line.text.startswith("@") else 5
    times, rest = " ".join(words[:count]), "".join(words[count:])
    if not system:
        return times, None, rest
    user, _, command = rest.partition(" ") if " " in rest else rest.partition("\t")
    return times, user, command.strip()


def _times(times: str) -> str:
    if times.lower() == "@reboot":
        raise Untranslatable(
            "@reboot is not a time: the command runs when the machine starts. Use systemd, or "
            "enqueue its task when your service starts"
        )
    return times


def _zone(variables: dict[str, str], tz: str | None) -> tuple[str, list[str]]:
    if zone := variables.get("CRON_TZ"):
        return zone.removeprefix(":"), []
    if zone := variables.get("TZ"):
        note = f"TZ={zone} is taken for the zone of its times; Debian's cron only hands it on"
        return zone.removeprefix(":"), [f"{note} to the command"]
    if tz is None:
        note = "no zone is given, so its times are read as UTC; cron reads them in the machine's"
        return "UTC", [f"{note} zone: give --tz"]
    return tz, []


def _command(text: str) -> tuple[str, list[str]]:
    if not text:
        raise Untranslatable("it has no command")
    if re.search(r"(?<!\\)%", text):
        raise Untranslatable(
            f"an unescaped % ends the command, and the rest is its standard input: {text!r}. Pass "
            "that input in another way, or write \\% for a percent sign"
        )
    if "\\%" in text:
        return text.replace("\\%", "%"), ["\\% in its command became %, as cron hands it on"]
    return text, []


def _notes(variables: dict[str, str], user: str | None, command: str) -> list[str]:
    notes = []
    if user is not None:
        notes.append(f"it ran as the user {user}; here it runs as the worker's user")
    elif command.split()[0] == "root":
        notes.append("its command begins with 'root': if this is a system crontab, use --system")
    for name, value in variables.items():
        if name == "MAILTO":
            notes.append(f"MAILTO={value} is left out: output is not mailed; failures are recorded")
        elif name not in ("CRON_TZ", "TZ"):
            notes.append(f"{name}={value} is left out: set it where the worker runs")
    return notes


def _slug(command: str) -> str:
    """A name for a command, from its program and its first words.

    >>> _slug("cd /srv/shop && ./manage.py clearsessions --all >> /var/log/shop.log 2>&1")
    'manage.py-clearsessions'
    """
    plain = re.split(r"\s[0-9&]?[<>|]", f"{command} ")[0]
    last = re.split(r"&&|\|\||;", plain)[-1]
    words = [
        word.rstrip("/").rpartition("/")[2]
        for word in last.strip("() ").split()
        if not word.startswith("-") and not _ASSIGNMENT.fullmatch(word)
    ]
    words = [word for index, word in enumerate(words) if index or word not in _BEFORE]
    slug = re.sub(r"[^A-Za-z0-9._]+", "-", "-".join(words[:3])).strip("-.")
    return slug[:_MAX_SLUG_LENGTH] or "command"
