"""Objects as JSON, by their attributes; and back, with classes of the same names."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, tzinfo
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

HERE = Path(__file__).parent
_LEFT_OUT = ("_app", "app", "_scheduler", "func", "metadata", "__weakref__")


def write(name: str, value: Any) -> None:
    text = json.dumps(to_json(value), separators=(",", ":"), sort_keys=True)
    (HERE / name).write_text(text + "\n")


def read(name: str) -> Any:
    return from_json(json.loads((HERE / name).read_text()))


def to_json(value: Any) -> Any:
    match value:
        case None | bool() | int() | float() | str():
            return value
        case datetime():
            return {"$datetime": value.isoformat(), "zone": to_json(value.tzinfo)}
        case timedelta():
            return {"$seconds": value.total_seconds()}
        case tzinfo():
            return {"$zone": str(value)}
        case tuple():
            return {"$tuple": [to_json(item) for item in value]}
        case set() | frozenset():
            return {"$set": sorted(value)}
        case list():
            return [to_json(item) for item in value]
        case dict():
            return {str(key): to_json(item) for key, item in value.items()}
        case ModuleType():
            return None
    if callable(value):
        return {"$function": getattr(value, "__qualname__", repr(value))}
    return {"$class": type(value).__name__, "attributes": to_json(_attributes(value))}


def from_json(value: Any) -> Any:
    match value:
        case list():
            return [from_json(item) for item in value]
        case {"$datetime": text, "zone": zone}:
            moment = datetime.fromisoformat(text)
            return moment if zone is None else moment.astimezone(from_json(zone))
        case {"$seconds": seconds}:
            return timedelta(seconds=seconds)
        case {"$zone": name}:
            return ZoneInfo(name)
        case {"$tuple": items}:
            return tuple(from_json(item) for item in items)
        case {"$set": items}:
            return set(items)
        case {"$function": name}:
            return lambda: name
        case {"$class": name, "attributes": attributes}:
            made = type(name, (), {})()
            for attribute, item in attributes.items():
                setattr(made, attribute, from_json(item))
            return made
        case dict():
            return {key: from_json(item) for key, item in value.items()}
    return value


def _attributes(value: Any) -> dict[str, Any]:
    if hasattr(value, "_member_map_"):  # An enum.
        return {"name": value.name, "value": value.value}
    slots = [slot for kind in type(value).__mro__ for slot in _slots(kind)]
    found = {slot: getattr(value, slot) for slot in slots if hasattr(value, slot)}
    found |= getattr(value, "__dict__", {})
    return {name: item for name, item in found.items() if name not in _LEFT_OUT}


def _slots(kind: type) -> tuple[str, ...]:
    slots = kind.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)
