"""The plan of an import, printed for people or as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from duetime.cli.output import compact, echo, one_line, plural, print_table
from duetime.integrations.importing.crontab import HOW_TO_RUN
from duetime.integrations.importing.plan import Plan, Planned


def print_plan(plan: Plan) -> None:
    """Print what becomes of each schedule, the notes on it, and what has no translation."""
    if plan.schedules:
        rows = [_row(planned) for planned in plan.schedules]
        print_table(("NAME", "TASK", "WHEN", "BECOMES"), rows)
    notes: dict[str, list[str]] = {}
    for planned in plan.schedules:
        for note in planned.notes:
            notes.setdefault(note, []).append(planned.schedule.name)
    _print_lines("Notes:", [f"{some(names)}: {note}." for note, names in notes.items()])
    _print_lines(
        "Not imported:",
        [f"{one.name} ({one.where}): {one.reason}." for one in plan.untranslated],
    )
    if any(planned.found.task is None for planned in plan.schedules):
        echo(
            "\nA crontab runs commands, but Duetime runs tasks. Write a task that runs a command, "
            f"and pass it with --task run_command:\n\n{_indent(HOW_TO_RUN).rstrip()}"
        )


def summary(plan: Plan, *, applied: bool, shadow: bool, checked: bool) -> str:
    """The last lines: how many, and whether that was written."""
    counts = [
        f"{plan.count(becomes)} {word}"
        for becomes, word in (("added", "added"), ("changed", "changed"), ("same", "the same"))
    ]
    text = f"\n{plural(len(plan.schedules), 'schedule')}: {', '.join(counts)}"
    if waiting := plan.count("needs --task"):
        text = f"\n{plural(waiting, 'schedule')} to add or change, once --task is given"
    if plan.untranslated:
        text += f"; {len(plan.untranslated)} not imported"
    text += ", in shadow: their ticks are recorded, but nothing runs." if shadow else "."
    if applied:
        return text
    if not checked:
        text += " Tasks and arguments were not checked. To check them, add --app."
    needed = "--task and --apply" if waiting else "--apply"
    return f"{text}\nThis is only a plan; nothing was changed. Add {needed} to apply it."


def plan_as_json(plan: Plan, *, applied: bool, shadow: bool) -> dict[str, Any]:
    return {
        "applied": applied,
        "shadow": shadow,
        "schedules": [
            {
                "name": planned.schedule.name,
                "where": planned.found.where,
                "task": planned.found.task,
                "args": planned.found.args,
                "when": planned.schedule.timetable.describe(),
                "timetable": planned.schedule.timetable.to_json(),
                "policy": planned.schedule.policy,
                "queue": planned.schedule.queue,
                "paused": planned.found.paused is not None,
                "becomes": planned.becomes,
                "differences": planned.differences,
                "notes": planned.notes,
            }
            for planned in plan.schedules
        ],
        "untranslated": [
            {"name": one.name, "where": one.where, "reason": one.reason}
            for one in plan.untranslated
        ],
    }


def some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5} more"


def _row(planned: Planned) -> tuple[str, ...]:
    args = f" {compact(planned.found.args)}" if planned.found.args else ""
    schedule = planned.schedule
    when = schedule.timetable.describe()
    return schedule.name, f"{schedule.target}{args}", when, _becomes(planned)


def _becomes(planned: Planned) -> str:
    text = planned.becomes
    if planned.becomes == "changed":
        text += f" ({', '.join(planned.differences)})"
    if planned.becomes == "added" and planned.found.paused is not None:
        text += ", paused"
    return text


def _print_lines(heading: str, lines: Sequence[str]) -> None:
    if lines:
        echo(f"\n{heading}")
        for line in lines:
            echo(f"  {one_line(line)}")


def _indent(code: str) -> str:
    return "".join(f"    {line}\n" for line in code.splitlines())
