"""`client.schedules` and `client.schedules.presets`."""

from __future__ import annotations

import builtins
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any, Unpack

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.api.schedules import ScheduleArguments, ScheduleInfo
from duetime.client.connection import Connection
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import check_arguments
from duetime.domain.duration import Duration, format_duration
from duetime.domain.page import DEFAULT_LIMIT, Page
from duetime.domain.reasons import Explanation
from duetime.domain.schedules.presets import Preset
from duetime.domain.schedules.preview import PreviewRow
from duetime.domain.schedules.schedule import TickStatusLike
from duetime.domain.schedules.timetable import Exclusions, Spec
from duetime.storage.schedules.rows import TickInfo


class PutAnswer(msgspec.Struct):
    """What a put did."""

    result: str


class _Applied(msgspec.Struct):
    results: dict[str, str]


class _Triggered(msgspec.Struct):
    job_id: int


class _Rescheduled(msgspec.Struct):
    tick: datetime


class _Backfilled(msgspec.Struct):
    runs: int


class _Preview(msgspec.Struct):
    ticks: list[PreviewRow]


class Schedules:
    """`client.schedules`: the verbs of `app.schedules`. `client.schedules["nightly"]` is one."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.presets = Presets(connection)

    def __getitem__(self, name: str) -> ScheduleHandle:
        return ScheduleHandle(self, name)

    async def put(
        self, name: str, task: str, *specs: Spec, **options: Unpack[ScheduleArguments]
    ) -> str:
        """Add a schedule, or change the one of that name; return `added`, `changed` or `same`."""
        answer = await self._connection.call(
            "PUT /schedules/{name}", PutAnswer, body=_body(task, specs, options), name=name
        )
        return answer.result

    async def apply(
        self, schedules: Iterable[Mapping[str, Any]], *, prune: bool = False
    ) -> dict[str, str]:
        """Store these schedules, all or none: what is new is added, what differs is changed.

        Each is `{"name": …, "task": …, "specs": […]}`, with the options of `put`. `prune`: what an
        earlier apply with `prune` declared, and is not among these, is removed.
        """
        given = [
            {"name": one["name"], **_body(one["task"], one.get("specs", ()), one)}
            for one in schedules
        ]
        body = {"schedules": given, "prune": prune}
        return (await self._connection.call("PUT /schedules", _Applied, body=body)).results

    async def get(self, name: str) -> ScheduleInfo:
        """Return one schedule; raise `ScheduleNotFound`."""
        return await self._connection.call("GET /schedules/{name}", ScheduleInfo, name=name)

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[ScheduleInfo]:
        """Return schedules by name."""
        query = {"limit": limit, "after": after}
        return await self._connection.page("GET /schedules", ScheduleInfo, query=query)

    iterate = iterated(list)

    async def delete(self, name: str, *, reason: str | None = None) -> None:
        """Delete the schedule and its ledger. Runs that have begun go on."""
        query = {"reason": reason}
        await self._connection.call("DELETE /schedules/{name}", query=query, name=name)

    async def explain(self, name: str, tick: datetime | None = None) -> Explanation:
        """Explain why the schedule does or does not run; with `tick`, the outcome of that tick."""
        return await self._connection.call(
            "GET /schedules/{name}/explain", Explanation, query={"tick": tick}, name=name
        )

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the schedule, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /schedules/{name}/audit", AuditEvent, query=query, name=name
        )

    async def pause(
        self, name: str, *, reason: str = "", until: datetime | Duration | None = None
    ) -> None:
        """Start no more runs, on any worker. `until`: when it resumes by itself."""
        body = {"reason": reason, "until": until}
        await self._connection.call("POST /schedules/{name}/pause", body=body, name=name)

    async def resume(self, name: str, *, missed: bool = False) -> None:
        """Start runs again. `missed`: catch up on the ticks of the pause."""
        body = {"missed": missed}
        await self._connection.call("POST /schedules/{name}/resume", body=body, name=name)

    async def trigger(self, name: str, *, reason: str | None = None) -> int:
        """Run it once now. Its next run does not change. Returns the job's id."""
        answer = await self._connection.call(
            "POST /schedules/{name}/trigger", _Triggered, body={"reason": reason}, name=name
        )
        return answer.job_id

    async def reschedule(self, name: str, at: datetime | Duration) -> datetime:
        """Move the next run to a time, or to a duration from now. Returns the tick."""
        answer = await self._connection.call(
            "POST /schedules/{name}/reschedule", _Rescheduled, body={"at": at}, name=name
        )
        return answer.tick

    async def backfill(
        self, name: str, start: datetime, end: datetime, *, failed: bool = False
    ) -> int:
        """Run the ticks from `start` up to `end` (not included) that have not run; return how many.

        `failed`: also those whose run ended without success.
        """
        body = {"start": start, "end": end, "failed": failed}
        answer = await self._connection.call(
            "POST /schedules/{name}/backfill", _Backfilled, body=body, name=name
        )
        return answer.runs

    async def preview(
        self, name: str, n: int = 10, *, since: datetime | None = None
    ) -> Sequence[PreviewRow]:
        """Return the next ticks of the timetable, in UTC and local time."""
        return await self._connection.call(
            "GET /schedules/{name}/preview",
            builtins.list[PreviewRow],
            query={"n": n, "since": since},
            name=name,
        )

    async def preview_times(
        self,
        *specs: Spec,
        tz: str | None = None,
        exclude: Exclusions = (),
        start: datetime | None = None,
        end: datetime | None = None,
        preset: str | None = None,
        n: int = 10,
        since: datetime | None = None,
    ) -> Sequence[PreviewRow]:
        """Return the next ticks of times, without a schedule."""
        query = {
            "specs": write_specs(specs),
            "tz": tz,
            "exclude": list_exclusions(exclude),
            "start": start,
            "end": end,
            "preset": preset,
            "n": n,
            "since": since,
        }
        return (await self._connection.call("GET /preview", _Preview, query=query)).ticks

    async def history(
        self,
        name: str,
        *,
        since: datetime | None = None,
        before: datetime | None = None,
        status: TickStatusLike | None = None,
        limit: int = DEFAULT_LIMIT,
        after: str | None = None,
    ) -> Page[TickInfo]:
        """Return the ledger, newest first: the outcome of each tick, and its reason."""
        query = {"since": since, "before": before, "status": status, "limit": limit, "after": after}
        return await self._connection.page(
            "GET /schedules/{name}/history", TickInfo, query=query, name=name
        )


class ScheduleHandle(Handle[Schedules, str]):
    """One schedule of the service, by its name."""

    get = bound(Schedules.get)
    delete = bound(Schedules.delete)
    explain = bound(Schedules.explain)
    audit = bound(Schedules.audit)
    pause = bound(Schedules.pause)
    resume = bound(Schedules.resume)
    trigger = bound(Schedules.trigger)
    reschedule = bound(Schedules.reschedule)
    backfill = bound(Schedules.backfill)
    preview = bound(Schedules.preview)
    history = bound(Schedules.history)


class Presets:
    """`client.schedules.presets`: the verbs of `app.schedules.presets`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def put(self, name: str, *specs: Spec, tz: str = "UTC", description: str = "") -> str:
        """Add a preset, or change it; return `added`, `changed` or `same`."""
        body = {"specs": write_specs(specs), "tz": tz, "description": description}
        return (
            await self._connection.call("PUT /presets/{name}", PutAnswer, body=body, name=name)
        ).result

    async def get(self, name: str) -> Preset:
        """Return the preset of that name; raise `PresetNotFound`."""
        return await self._connection.call("GET /presets/{name}", Preset, name=name)

    async def list(self, *, limit: int = DEFAULT_LIMIT, after: str | None = None) -> Page[Preset]:
        """Return the presets that come with Duetime, then your own by name."""
        query = {"limit": limit, "after": after}
        return await self._connection.page("GET /presets", Preset, query=query)

    iterate = iterated(list)

    async def delete(self, name: str) -> None:
        """Delete a preset of your own."""
        await self._connection.call("DELETE /presets/{name}", name=name)

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the preset, newest first."""
        query = {"limit": limit, "after": after}
        return await self._connection.page(
            "GET /presets/{name}/audit", AuditEvent, query=query, name=name
        )


def _body(task: str, specs: Iterable[Spec], options: Mapping[str, Any]) -> dict[str, Any]:
    given = {name: one for name, one in options.items() if name not in ("name", "task", "specs")}
    if given.get("args") is not None:
        given["args"] = check_arguments(given["args"])
    if "exclude" in given:
        given["exclude"] = list_exclusions(given["exclude"])
    return {**given, "task": task, "specs": write_specs(specs)}


def write_specs(specs: Iterable[Spec]) -> list[Any]:
    """Specs as the service takes them."""
    return [
        f"@every {format_duration(spec)}" if isinstance(spec, timedelta) else spec for spec in specs
    ]


def list_exclusions(given: Exclusions) -> list[str | date]:
    """Exclusions as the service takes them."""
    return [given] if isinstance(given, str | date) else [*given]
