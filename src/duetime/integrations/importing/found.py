"""What was found elsewhere: a schedule as Duetime would have it, or why there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any

import msgspec

from duetime.domain.schedules.timetable import Spec
from duetime.errors import DuetimeError

LONG_INTERVAL = timedelta(hours=1)
"""From here on, people care about the minute at which an interval ticks."""


class Untranslatable(DuetimeError):
    """Why a schedule cannot be translated."""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule of the source. With a `reason` it has no translation."""

    name: str
    where: str
    """Its place in the source, for people."""
    task: str | None = None
    """None: the caller of the import says which."""
    origin: str | None = None
    """The task's name in the source."""
    args: Mapping[str, Any] = {}
    specs: tuple[Spec, ...] = ()
    tz: str = "UTC"
    exclude: tuple[str, ...] = ()
    start: datetime | None = None
    end: datetime | None = None
    jitter: timedelta | None = None
    queue: str | None = None
    policy: Mapping[str, Any] = {}
    paused: str | None = None
    """Why it is added paused."""
    notes: tuple[str, ...] = ()
    reason: str | None = None


class Tasks(msgspec.Struct, frozen=True):
    """What becomes of the calls of the source: new names, and the arguments that tasks take."""

    names: Mapping[str, str] = {}
    arguments: Mapping[str, Sequence[str]] = {}

    def rename(self, origin: str) -> str:
        """Return the task for the source's name. `module:function` is `module.function` here.

        >>> Tasks({"shop.old": "shop.new"}).rename("shop:old")
        'shop.new'
        """
        plain = origin.replace(":", ".")
        names = {name.replace(":", "."): new for name, new in self.names.items()}
        return self.names.get(origin) or names.get(plain, plain)

    def bind(self, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, or raise `Untranslatable`.

        >>> Tasks(arguments={"add": ("a", "b")}).bind("add", [1], {"b": 2})
        {'a': 1, 'b': 2}
        """
        if not all(isinstance(name, str) for name in kwargs):
            raise Untranslatable(
                f"the names of its keyword arguments are not strings: {kwargs!r:.80}"
            )
        if not args:
            return dict(kwargs)
        given = f"its arguments have no names: {tuple(args)!r:.80}"
        if task not in self.arguments:
            raise Untranslatable(
                f"{given}. Arguments are stored by name: give --app with a task {task!r}, whose "
                "signature names them, or pass them as keyword arguments"
            )
        names = self.arguments[task]
        if len(args) > len(names) or set(names[: len(args)]) & set(kwargs):
            raise Untranslatable(f"{given}; they do not fit {task}({', '.join(names)})")
        return dict(zip(names, args, strict=False)) | dict(kwargs)


def translate_each(
    items: Iterable[Any],
    name_of: Callable[[Any], tuple[str, str, str | None]],
    translate: Callable[[Any], dict[str, Any]],
) -> list[Found]:
    """Translate one by one: what fails becomes its reason, and the others go on.

    `name_of` gives name, place and the task's name in the source; `translate` the other fields.
    """
    found = []
    for item in items:
        name, where, origin = name_of(item)
        try:
            fields = translate(item)
        except Untranslatable as error:
            fields = {"reason": str(error)}
        except (AttributeError, LookupError, OverflowError, TypeError, ValueError) as error:
            # Whatever others have stored, one of them does not keep the rest from being read.
            fields = {"reason": f"it cannot be read: {error!r:.200}"}
        found.append(Found(name=name, where=where, origin=origin, **fields))
    return found


def name_apart(found: Iterable[Found]) -> list[Found]:
    """Give each a name of its own: the first keeps it, the others get a digest of what they say.

    So the names do not depend on line numbers. What is there twice runs once.
    """
    named: list[Found] = []
    seen: dict[str, str] = {}
    for one in found:
        digest = _digest(one)
        name = one.name if one.name not in seen else f"{one.name}-{digest}"
        if one.reason is None and digest in (seen.get(one.name), seen.get(name)):
            one = msgspec.structs.replace(one, reason=f"it is the same as {one.name!r} above")
        elif one.reason is None:
            seen[name] = digest
            one = msgspec.structs.replace(one, name=name)
        named.append(one)
    return named


def zone_name(zone: Any) -> str | None:
    """Return the IANA name of a zone: of text, zoneinfo, pytz or UTC. None: it has none.

    >>> from datetime import UTC
    >>> zone_name(UTC), zone_name("Europe/Berlin"), zone_name(None)
    ('UTC', 'Europe/Berlin', None)
    """
    if isinstance(zone, str):
        return zone or None
    for attribute in ("key", "zone"):
        if name := getattr(zone, attribute, None):
            return str(name)
    return "UTC" if str(zone) == "UTC" else None


def interval_notes(every: timedelta) -> tuple[str, ...]:
    """What to say of an interval that had no start of its own."""
    if every < LONG_INTERVAL:
        return ()
    note = "it is counted from 1970-01-01T00:00Z, not from the start of a process: if the time of"
    return (f"{note} day matters, give it a start, or write it as a cron expression",)


def plain_end(error: DuetimeError) -> str:
    """An error's message as part of a longer line."""
    return str(error).removesuffix(".")


def _digest(found: Found) -> str:
    said = [found.task, found.args, found.specs, found.tz, found.exclude, found.start, found.end]
    return blake2b(repr(said).encode(errors="replace"), digest_size=3).hexdigest()
