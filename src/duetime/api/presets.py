"""`app.schedules.presets`: named timetables that people choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from duetime.domain.audit import AuditEvent
from duetime.domain.checks import check_actor, check_name, check_sought, check_text
from duetime.domain.page import DEFAULT_LIMIT, Page, check_limit, make_page, read_cursor
from duetime.domain.schedules.presets import PRESETS, Preset, find_preset
from duetime.domain.schedules.timetable import Spec, timetable
from duetime.errors import InvalidInput, PresetNotFound
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.store import Statements

if TYPE_CHECKING:
    from duetime.app import Duetime


class Presets:
    """`app.schedules.presets`: those that come with Duetime, and your own."""

    def __init__(self, app: Duetime) -> None:
        self._app = app

    async def put(
        self,
        name: str,
        *specs: Spec,
        tz: str = "UTC",
        description: str = "",
        by: str = "unknown",
        tx: Any = None,
    ) -> str:
        """Add a preset, or change it; return `added`, `changed` or `same`.

        Schedules that were made with it stay as they are.
        """
        check_name(name, what="preset's name")
        if name.casefold() in {preset.name.casefold() for preset in PRESETS}:
            raise InvalidInput(
                f"The preset {name!r} is built in and cannot be changed. Choose another name."
            )
        times = timetable(*specs, tz=tz)
        check_text(description, what="The description")
        actor = check_actor(by)
        answer: str = await self._do(
            lambda s: s.put_preset(name, times, description, actor=actor), tx
        )
        return answer

    async def get(self, name: str) -> Preset:
        """Return the preset of that name; raise `PresetNotFound`."""
        check_sought(name, what="preset's name")
        for preset in await self._all():
            if preset.name.casefold() == name.casefold():
                return preset
        raise PresetNotFound(name)

    async def list(self, *, limit: int = DEFAULT_LIMIT, after: str | None = None) -> Page[Preset]:
        """Return those that come with Duetime, then your own by name.

        `after`: the `next` of the previous page.
        """
        position = read_cursor(after, order="presets", shape=tuple[int, str])
        check_limit(limit)
        found = [one for one in await self._all() if position is None or _position(one) > position]
        return make_page(found, limit=limit, order="presets", position=_position)

    async def delete(self, name: str, *, by: str = "unknown", tx: Any = None) -> None:
        """Delete a preset of your own; raise `PresetNotFound`."""
        check_sought(name, what="preset's name")
        actor = check_actor(by)
        if not await self._do(lambda s: s.delete_preset(name, actor=actor), tx):
            raise PresetNotFound(name)

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the preset, newest first."""
        known = check_sought(name, what="preset's name")
        return await self._app.audit.list(entity=f"preset:{known}", limit=limit, after=after)

    async def find(self, name: str) -> dict[str, Any]:
        """Return the timetable of a preset, as it is stored."""
        for mine, value, _ in await self._do(lambda s: s.presets(), reads=True):
            if mine.casefold() == name.casefold():
                return dict(value)
        return {"specs": [find_preset(name).spec], "tz": "UTC"}

    async def _all(self) -> Sequence[Preset]:
        own = await self._do(lambda s: s.presets(), reads=True)
        return [*PRESETS, *(Preset(name, _texts(value), about) for name, value, about in own)]

    async def _do(
        self,
        make: Callable[[ScheduleStatements], Statements],
        tx: Any = None,
        *,
        reads: bool = False,
    ) -> Any:
        return await self._app._perform(
            lambda dialect: make(ScheduleStatements(dialect)), tx, reads=reads
        )


def _position(preset: Preset) -> tuple[int, str]:
    """Those that come with Duetime stand first, in their own order; then yours, by name."""
    if preset in PRESETS:
        return PRESETS.index(preset), ""
    return len(PRESETS), preset.name


def _texts(timetable: Mapping[str, Any]) -> str:
    """The specs as people write them."""
    shown = []
    for spec in timetable["specs"]:
        [(kind, text)] = [(kind, text) for kind, text in spec.items() if kind != "start"]
        shown.append({"every": f"@every {text}", "rrule": f"RRULE:{text}"}.get(kind, text))
    tz = timetable["tz"]
    return " and ".join(shown) + ("" if tz == "UTC" else f" ({tz})")
