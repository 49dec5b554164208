"""`app.schedules`: what runs when, declared in code or changed at run time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar, Unpack

import msgspec

from duetime.api.handle import Handle, bound, iterated
from duetime.api.presets import Presets
from duetime.api.registration import Registrations
from duetime.api.tasks import Task
from duetime.domain.audit import AuditEvent
from duetime.domain.checks import (
    check_actor,
    check_arguments,
    check_finite,
    check_json_text,
    check_many,
    check_moment,
    check_name,
    check_priority,
    check_queue,
    check_sought,
    check_task_not_reserved,
    check_text,
)
from duetime.domain.duration import Duration, format_time, parse_duration
from duetime.domain.page import (
    DEFAULT_LIMIT,
    Moment,
    Page,
    check_limit,
    make_page,
    read_cursor,
)
from duetime.domain.reasons import Explanation, Reason
from duetime.domain.schedules.explain import explain_schedule, explain_tick
from duetime.domain.schedules.plan import stands_for
from duetime.domain.schedules.presets import find_preset
from duetime.domain.schedules.preview import PreviewRow, preview
from duetime.domain.schedules.schedule import (
    Policy,
    PolicyArguments,
    Schedule,
    TickStatus,
    TickStatusLike,
    make_policy,
)
from duetime.domain.schedules.timetable import Exclusions, Spec, Timetable, timetable
from duetime.errors import InvalidInput, InvalidSchedule, MissingPackage, ScheduleNotFound
from duetime.schedules.events import ScheduleEvents
from duetime.storage.schedules.changes import ScheduleStatements
from duetime.storage.schedules.rows import Declarer, NewSchedule, TickInfo
from duetime.storage.store import Dialect, Statements

if TYPE_CHECKING:
    from duetime.app import Duetime

T = TypeVar("T", bound=Task[..., Any])

_MAX_BACKFILLED = 10_000


class ScheduleInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule as people see it."""

    name: str
    kind: str
    target: str
    args: Any
    when: str
    tz: str
    timetable: dict[str, Any]
    policy: Policy
    queue: str | None
    priority: int | None
    max_attempts: int | None
    timeout: timedelta | None
    enabled: bool
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_enqueued_at: datetime | None
    paused_at: datetime | None
    paused_by: str | None
    pause_reason: str | None
    paused_until: datetime | None
    failures: int
    broken: Reason | None
    owner: str | None
    declared: bool
    revision: int
    created_at: datetime
    updated_at: datetime


class ScheduleArguments(PolicyArguments, total=False):
    """The keyword arguments of `@app.schedule(…)`, other than its name."""

    args: Mapping[str, Any] | None
    tz: str
    exclude: Exclusions
    start: datetime | str | None
    end: datetime | str | None
    jitter: Duration | None
    preset: str | None
    queue: str | None
    priority: int | None
    renamed_from: str | None
    stored: bool


class Schedules:
    """`app.schedules`. `app.schedules["name"]` is one schedule, with the same verbs."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._declared: dict[str, NewSchedule] = {}
        self.presets = Presets(app)
        self._registrations = Registrations()

    def __getitem__(self, name: str) -> ScheduleHandle:
        return ScheduleHandle(self, _check_sought(name))

    async def put(
        self,
        name: str,
        task: Task[..., Any] | str,
        *specs: Spec,
        by: str = "unknown",
        tx: Any = None,
        args: Mapping[str, Any] | None = None,
        tz: str | None = None,
        exclude: Exclusions = (),
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        jitter: Duration | None = None,
        preset: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        **policy: Unpack[PolicyArguments],
    ) -> str:
        """Add a schedule, or change the one with that name; return `added`, `changed` or `same`.

        `specs`: cron, `@every 10m`, RRULE, moments; see the guide on schedules.
        `catch_up`: what happens to missed ticks, with `max_runs`, `max_age`, `pace`, `grace`.
        `overlap`: what happens if the last run has not finished, with `max_concurrent_runs`,
        `burst_allowed`. `after`, `within`, `wait`: run only if another schedule succeeded.
        `pause_after`: pause after so many failures in a row. `expires`: the latest start.
        `shadow`: record the ticks, but run nothing.
        """
        if preset is not None:
            found = await self.presets.find(preset)
            specs, preset, tz = (*specs, *found["specs"]), None, tz or found["tz"]
        # Off the loop: some times are only found, or refused, after a long search.
        new = await asyncio.to_thread(
            self.define, name, task, *specs, args=args, tz=tz or "UTC", exclude=exclude,
            start=start, end=end, jitter=jitter, preset=preset, queue=queue,
            priority=priority, **policy,
        )  # fmt: skip
        answer = await self.apply([new], by=by, tx=tx)
        return answer[name]

    async def apply(
        self,
        schedules: Iterable[NewSchedule],
        *,
        prune: bool = False,
        by: str = "unknown",
        tx: Any = None,
    ) -> dict[str, str]:
        """Store these schedules, all or none: new ones are added, those that differ are changed.

        `prune`: remove schedules that an earlier `apply(prune=True)` or the code of this service
        declared and that are not among these. A pause stays. Returns the change of each name:
        `added`, `changed`, `same`, `renamed`, `removed`. Raises `OlderRelease` if a newer release
        of this service has declared its schedules.
        """
        takes = "apply() takes schedules returned by define()"
        given = check_many(schedules, takes=takes)
        for schedule in given:
            if not isinstance(schedule, NewSchedule):
                raise InvalidInput(f"{takes}, got {schedule!r:.60}.")
            if not schedule.stored:
                raise InvalidInput(
                    f"The schedule {schedule.name!r} has stored=False and cannot be stored. "
                    "Declare it with @app.schedule."
                )
        if prune:
            given = [msgspec.structs.replace(schedule, declared=True) for schedule in given]
        declares = prune or any(schedule.declared for schedule in given)
        settings = self._app.settings
        declarer = Declarer(settings.service, settings.release) if declares else None
        answer: dict[str, str] = await self._do(
            lambda statements: statements.apply(
                given, actor=check_actor(by), prune=prune, declarer=declarer
            ),
            tx,
        )
        return answer

    async def get(self, name: str) -> ScheduleInfo:
        """Return one schedule; raise `ScheduleNotFound`."""
        return _info(await self._find(name))

    async def list(
        self, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[ScheduleInfo]:
        """Return schedules by name. `after`: the `next` of the previous page."""
        position = read_cursor(after, order="schedules", shape=tuple[str])
        most = check_limit(limit) + 1
        found = await self._do(
            lambda s: s.list_schedules(after=position and position[0], limit=most), reads=True
        )
        infos = [_info(schedule) for schedule in found]
        return make_page(infos, limit=limit, order="schedules", position=lambda one: (one.name,))

    iterate = iterated(list)

    async def delete(
        self, name: str, *, by: str = "unknown", reason: str | None = None, tx: Any = None
    ) -> None:
        """Delete the schedule and its ledger. Runs that have started continue."""
        _check_sought(name)
        _check_reason(reason)
        self._found(
            name, await self._do(lambda s: s.delete(name, actor=check_actor(by), reason=reason), tx)
        )

    async def explain(self, name: str, tick: datetime | None = None) -> Explanation:
        """Explain why the schedule does or does not run; with `tick`, the outcome of that tick."""
        schedule = await self._find(name)
        store = await self._app.store()
        now = await store.now()
        workers = [worker for worker in await store.workers() if worker.lease_until > now]
        if tick is None:
            last = await self.history(name, limit=1, before=now)
            able = [worker.name for worker in workers if schedule.target in worker.tasks]
            return explain_schedule(schedule, now=now, last=last[0] if last else None, able=able)
        check_moment(tick, name="tick")
        rows = await self.history(name, before=tick + timedelta(microseconds=1), limit=1)
        row = rows[0] if rows else None
        if row is not None and row.tick != tick and not stands_for(row.reason, tick):
            row = None
        return explain_tick(schedule, tick, now=now, row=row)

    async def audit(
        self, name: str, *, limit: int = DEFAULT_LIMIT, after: str | None = None
    ) -> Page[AuditEvent]:
        """Return who changed the schedule, newest first. It outlives the schedule itself."""
        entity = f"schedule:{_check_sought(name)}"
        return await self._app.audit.list(entity=entity, limit=limit, after=after)

    # Operate

    async def pause(
        self,
        name: str,
        *,
        reason: str = "",
        until: datetime | Duration | None = None,
        by: str = "unknown",
        tx: Any = None,
    ) -> None:
        """Start no more runs, on any worker. Runs that have started continue.

        `until`: when it resumes by itself.
        """
        _check_sought(name)
        check_text(reason, what="The reason")
        at = None if until is None else await self._moment(until, name="until")
        if at is not None and at <= await self._app.now():
            raise InvalidInput(f"until={format_time(at)} is in the past. Give a later time.")
        self._found(
            name,
            await self._do(
                lambda s: s.pause(name, actor=check_actor(by), reason=reason, until=at), tx
            ),
        )

    async def resume(
        self, name: str, *, missed: bool = False, by: str = "unknown", tx: Any = None
    ) -> None:
        """Start runs again. `missed`: catch up on the ticks of the pause, as `catch_up` says;
        otherwise they are skipped. Resuming twice has no further effect."""
        _check_sought(name)
        self._found(
            name, await self._do(lambda s: s.resume(name, actor=check_actor(by), missed=missed), tx)
        )

    async def trigger(
        self, name: str, *, by: str = "unknown", reason: str | None = None, tx: Any = None
    ) -> int:
        """Run it once now. Its next run does not change. Returns the job's id."""
        _check_sought(name)
        _check_reason(reason)
        job_id: int | None = await self._do(
            lambda s: s.trigger(name, actor=check_actor(by), reason=reason), tx
        )
        self._found(name, job_id is not None)
        assert job_id is not None
        return job_id

    async def reschedule(
        self, name: str, at: datetime | Duration, *, by: str = "unknown", tx: Any = None
    ) -> datetime:
        """Move the next run to a time, or to a duration from now. Other runs do not change.

        That is the run of `next_run_at`; if there is none, one that is overdue. Returns the tick
        that was moved.
        """
        _check_sought(name)
        moment = await self._moment(at, name="at")
        tick: datetime | None = await self._do(
            lambda s: s.reschedule(name, moment, actor=check_actor(by)), tx
        )
        if tick is None:
            await self.get(name)
            raise InvalidInput(
                f"The schedule {name!r} has no next run to move: it is paused, or has ended."
            )
        return tick

    async def backfill(
        self,
        name: str,
        start: datetime,
        end: datetime,
        *,
        failed: bool = False,
        by: str = "unknown",
        tx: Any = None,
    ) -> int:
        """Run the ticks from `start` up to `end` (not included) that have not run; return how many.

        `failed`: also those whose run was dead or cancelled. They run one after the other, or
        together with `burst_allowed`.
        """
        check_moment(start, name="start")
        check_moment(end, name="end")
        schedule = await self._find(name, tx)
        now = await self._app.now()
        if not start < end <= now:
            raise InvalidInput(
                "A backfill must start before it ends, and end no later than now "
                f"({format_time(now)})."
            )
        ticks = await asyncio.to_thread(ticks_between, _timetable(schedule), start, end)
        count: int | None = await self._do(
            lambda s: s.backfill(name, ticks, failed=failed, actor=check_actor(by)), tx
        )
        return count or 0

    # Inspect

    async def preview(
        self, name: str, n: int = 10, *, since: datetime | None = None
    ) -> Sequence[PreviewRow]:
        """Return the next ticks of the timetable, in UTC and local time."""
        schedule = await self._find(name)
        start = since or await self._app.now()
        return await asyncio.to_thread(preview, _timetable(schedule), start, n)

    async def preview_times(
        self,
        *specs: Spec,
        tz: str | None = None,
        exclude: Exclusions = (),
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        preset: str | None = None,
        n: int = 10,
        since: datetime | None = None,
    ) -> tuple[Timetable, Sequence[PreviewRow]]:
        """Return times as a timetable, and its next ticks, without a schedule.

        Raises `InvalidSchedule` if they cannot be read or never come, and `PresetNotFound`.
        """
        if preset is not None:
            found = await self.presets.find(preset)
            specs, tz = (*specs, *found["specs"]), tz or found["tz"]
        after = check_moment(since, name="since") if since else await self._app.now()

        def read() -> tuple[Timetable, Sequence[PreviewRow]]:
            times = timetable(*specs, tz=tz or "UTC", exclude=exclude, start=start, end=end)
            return times, preview(times, after, n)

        return await asyncio.to_thread(read)

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
        """Return the ledger, newest first: the outcome of each tick, and its reason.

        `after`: the `next` of the previous page.
        """
        await self.get(name)
        if status is not None and status not in tuple(TickStatus):
            raise InvalidInput(
                f"{status!r} is not a status of a tick. Use one of: {', '.join(TickStatus)}."
            )
        position = read_cursor(after, order="history", shape=tuple[Moment])
        if position is not None:
            before = position[0] if before is None else min(before, position[0])
        most = check_limit(limit) + 1
        rows: Sequence[TickInfo] = await self._do(
            lambda s: s.history(name, since=since, before=before, status=status, limit=most),
            reads=True,
        )
        return make_page(rows, limit=limit, order="history", position=lambda row: (row.tick,))

    # Declare in code

    @property
    def declared(self) -> Sequence[NewSchedule]:
        """What the code declares; every worker stores it when it starts."""
        return list(self._declared.values())

    def declare(self, schedule: NewSchedule) -> None:
        """Declare a schedule in code; `@app.schedule` does this.

        Raises `InvalidInput` if another is declared under its name.
        """
        new = msgspec.structs.replace(schedule, declared=True)
        self._registrations.add(
            f"schedule {new.name!r}", new, advice="Give each schedule its own name with name=."
        )
        self._declared[new.name] = new

    def define(
        self,
        name: str,
        task: Task[..., Any] | str,
        *specs: Spec,
        args: Mapping[str, Any] | None = None,
        tz: str = "UTC",
        exclude: Exclusions = (),
        start: datetime | str | None = None,
        end: datetime | str | None = None,
        jitter: Duration | None = None,
        preset: str | None = None,
        queue: str | None = None,
        priority: int | None = None,
        renamed_from: str | None = None,
        stored: bool = True,
        **policy: Unpack[PolicyArguments],
    ) -> NewSchedule:
        """Return a schedule, checked but not stored, for `apply`. See `put` for the options.

        `renamed_from`: its previous name. It keeps its history, its pause, and the schedules that
        depend on it.

        `stored=False`, for `@app.schedule` and `declare`: it ticks in the memory of each worker.
        """
        if not stored and (refused := sorted(set(policy) - {"expires"})):
            raise InvalidSchedule(
                "A schedule with stored=False has no history, so it does not support "
                f"{refused[0]}. Leave out stored=False."
            )
        if preset is not None:
            specs = (*specs, find_preset(preset).spec)
        times = timetable(*specs, tz=tz, exclude=exclude, start=start, end=end, jitter=jitter)
        how = make_policy(policy)
        if how.after == name:
            raise InvalidSchedule(f"The schedule {name!r} cannot depend on itself: after={name!r}.")
        new = self._make(name, task, times, args, queue, priority, how)
        if renamed_from is not None:
            check_name(renamed_from, what="schedule's previous name")
            if renamed_from == name:
                raise InvalidSchedule(
                    f"renamed_from={renamed_from!r} must differ from the name of the schedule."
                )
        return msgspec.structs.replace(new, stored=stored, renamed_from=renamed_from)

    def _make(
        self,
        name: str,
        task: Task[..., Any] | str,
        times: Timetable,
        args: Mapping[str, Any] | None,
        queue: str | None,
        priority: int | None,
        policy: Policy,
    ) -> NewSchedule:
        target = task.name if isinstance(task, Task) else check_name(task, what="task")
        check_task_not_reserved(target)
        new = NewSchedule(
            name=check_name(name, what="schedule's name"),
            target=target,
            queue=None if queue is None else check_queue(queue),
            priority=None if priority is None else check_priority(priority),
            timetable=times,
            policy=policy,
        )
        given = check_arguments(args)
        definition = self._app.tasks.get(target)
        if definition is None:
            # Another deploy may know it; what it takes cannot be checked here.
            try:
                raw = msgspec.json.encode(given)
            except (TypeError, ValueError, OverflowError, RecursionError) as error:
                raise InvalidSchedule(
                    f"The arguments cannot be encoded as JSON: {error}."
                ) from None
            check_finite(given, raw, what="The args")
            check_json_text(raw, what="The args")
            return msgspec.structs.replace(new, args=msgspec.Raw(raw))
        options = definition.options
        return msgspec.structs.replace(
            new,
            kind="flow" if options.flow else "task",
            args=definition.encode((), given),
            queue=new.queue or options.queue,
            priority=options.priority if new.priority is None else new.priority,
            max_attempts=options.max_attempts,
            timeout=options.timeout,
            policy=_with_task_expiry(policy, options.expires),
        )

    # How it is done

    async def _find(self, name: str, tx: Any = None) -> Schedule:
        _check_sought(name)
        found: list[Schedule] = await self._do(
            lambda statements: statements.find([name]), tx, reads=True
        )
        if not found:
            raise ScheduleNotFound(name)
        return found[0]

    async def _do(
        self,
        make: Callable[[ScheduleStatements], Statements],
        tx: Any = None,
        *,
        reads: bool = False,
    ) -> Any:
        statements: list[ScheduleStatements] = []

        def begin(dialect: Dialect) -> Statements:
            statements.append(ScheduleStatements(dialect))
            return make(statements[-1])

        answer = await self._app._perform(begin, tx, reads=reads, computes=True)
        for name, reason in statements[-1].set_aside.items():
            ScheduleEvents().broken(name, str(reason))
        return answer

    def _found(self, name: str, found: bool) -> None:
        if not found:
            raise ScheduleNotFound(name)

    async def _moment(self, value: datetime | Duration, *, name: str) -> datetime:
        if isinstance(value, datetime):
            return check_moment(value, name=name)
        return await self._app.now() + parse_duration(value, name=name)


class ScheduleHandle(Handle[Schedules, str]):
    """One schedule, by its name."""

    @property
    def name(self) -> str:
        return self._ref

    get = bound(Schedules.get)
    pause = bound(Schedules.pause)
    resume = bound(Schedules.resume)
    trigger = bound(Schedules.trigger)
    reschedule = bound(Schedules.reschedule)
    backfill = bound(Schedules.backfill)
    delete = bound(Schedules.delete)
    preview = bound(Schedules.preview)
    history = bound(Schedules.history)
    explain = bound(Schedules.explain)
    audit = bound(Schedules.audit)


def _info(schedule: Schedule) -> ScheduleInfo:
    return ScheduleInfo(
        args=msgspec.json.decode(schedule.args),
        when=schedule.timetable.describe() if schedule.readable else "unreadable",
        tz=schedule.timetable.tz,
        timetable=schedule.timetable.to_json(),
        enabled=schedule.paused_at is None and schedule.broken is None,
        **{
            field: getattr(schedule, field)
            for field in ScheduleInfo.__struct_fields__
            if field not in ("args", "when", "tz", "timetable", "enabled")
        },
    )  # fmt: skip


def _timetable(schedule: Schedule) -> Timetable:
    if schedule.unreadable is not None:
        raise MissingPackage(schedule.unreadable)
    return schedule.timetable


def _with_task_expiry(policy: Policy, expires: timedelta | None) -> Policy:
    if policy.expires is None and expires is not None:
        return msgspec.structs.replace(policy, expires=expires)
    return policy


def ticks_between(timetable: Timetable, start: datetime, end: datetime) -> list[datetime]:
    """The ticks that a backfill from `start` to before `end` is about."""
    moment = timedelta(microseconds=1)
    ticks = list(islice(timetable.runs(start - moment, end - moment), _MAX_BACKFILLED + 1))
    if len(ticks) > _MAX_BACKFILLED:
        raise InvalidInput(
            f"A backfill is limited to {_MAX_BACKFILLED:,} runs. Choose a shorter range."
        )
    return ticks


def _check_sought(name: str) -> str:
    return check_sought(name, what="schedule's name")


def _check_reason(reason: str | None) -> None:
    if reason is not None:
        check_text(reason, what="The reason")
