"""What an event of the audit says of a schedule."""

from __future__ import annotations

from typing import Any

import msgspec

from duetime.cli.output import compact, plural
from duetime.cli.schedules.show import POLICIES, policy_value
from duetime.domain.audit import AuditEvent
from duetime.domain.schedules.schedule import Policy
from duetime.domain.schedules.timetable import Timetable
from duetime.errors import InvalidInput


def describe_schedule_event(event: AuditEvent) -> list[str]:
    """What an event did, in few words."""
    before, after = event.before or {}, event.after or {}
    match event.action:
        case "schedule.add" | "schedule.put" if not before:
            return [f"{after['target']}, {_when(after)}"]
        case "schedule.delete":
            return [f"{before['target']}, {_when(before)}"]
        case "schedule.pause":
            return [f"until {after['until']}"] if after.get("until") else []
        case "schedule.resume":
            return ["with what was missed"] if after.get("missed") else []
        case "schedule.reschedule":
            return [f"the run of {after['tick']}, to {after['run_at']}"]
        case "schedule.backfill":
            runs = plural(after.get("runs", 0), "run")
            if after.get("failed"):
                runs += ", failed ones included"
            return [f"{runs}, {after['from']} to {after['to']}" if after else runs]
    old, new = _leaves(before), _leaves(after)
    return [
        f"{name}: {old.get(name, 'none')} → {new.get(name, 'none')}"
        for name in dict.fromkeys([*old, *new])
        if old.get(name) != new.get(name)
    ]


def _when(summary: dict[str, Any]) -> str:
    try:
        return Timetable.from_json(summary["timetable"]).describe()
    except InvalidInput:
        return compact(summary["timetable"])


def _leaves(summary: dict[str, Any]) -> dict[str, str]:
    """The values of a schedule that an event contains, by name; the policies by their own."""
    values = dict(summary)
    if values.pop("timetable", None) is not None:
        values = {"when": _when(summary)} | values
    if "policy" in values:
        policy = msgspec.convert(values.pop("policy"), Policy)
        values |= {name: policy_value(getattr(policy, name)) or None for name in POLICIES}
    return {
        name.replace("_", "-"): value if isinstance(value, str) else compact(value)
        for name, value in values.items()
        if value is not None
    }
