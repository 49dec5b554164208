"""What is wrong with an installation, or will be: the findings of `duetime doctor`."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
import zoneinfo
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from duetime.domain.duration import Duration, format_duration, parse_positive_duration
from duetime.domain.findings import Finding, FindingLevel, Thresholds
from duetime.domain.stats.problems import ProblemInfo
from duetime.domain.urls import hide_passwords, show_url
from duetime.errors import DuetimeError, StorageError
from duetime.storage.diagnosis import Check, Diagnosis
from duetime.storage.migrations import read_status
from duetime.storage.store import WorkerInfo
from duetime.wiring import file_of, make_diagnosis, make_migrator

if TYPE_CHECKING:
    from duetime.api.schedules import ScheduleInfo
    from duetime.app import Duetime

_MOST = 10
"""So many findings of one code are shown."""
_SAMPLE = 500
_LEDGERS = 20
"""Of so many schedules that have never fired the ledger is read."""
_CHECKS_OF_PROBLEMS = {
    "no_workers": "workers",
    "worker_lost": "workers",
    "worker_silent": "workers",
    "jobs_lost": "workers",
    "queue_not_served": "queues",
    "queue_paused": "queues",
    "jobs_late": "queues",
    "jobs_dead": "jobs",
    "jobs_parked": "jobs",
    "runs_failed": "jobs",
    "schedule_broken": "schedules",
    "schedule_paused_by_failures": "schedules",
    "schedule_failing": "schedules",
    "reminders_failed": "reminders",
    "subjects_stale": "reminders",
    "addresses_disabled": "reminders",
    "table_broken": "tables",
    "table_rows": "tables",
}
_NOUNS = ("workers", "queues", "jobs", "reminders", "tables", "schedules")
_READER = "the owner of the tables, or as a member of the role that `duetime db roles` names reader"


async def examine(
    app: Duetime, *, thresholds: Thresholds | None = None, timeout: Duration = "10s"
) -> list[Finding]:
    """What `app.examine` does."""
    limit = parse_positive_duration(timeout, name="timeout")
    return await _Examination(app, thresholds or Thresholds(), limit).run()


def worst(findings: Sequence[Finding]) -> FindingLevel:
    """Return the highest level among the findings."""
    order = list(FindingLevel)
    return max((finding.level for finding in findings), key=order.index, default=FindingLevel.OK)


class _Examination:
    def __init__(self, app: Duetime, thresholds: Thresholds, timeout: timedelta) -> None:
        self._app = app
        self._thresholds = thresholds
        self._timeout = timeout
        self._diagnosis: Diagnosis | None = None
        self._now = datetime.now(UTC)
        self._workers: list[WorkerInfo] = []

    async def run(self) -> list[Finding]:
        database = await self._guarded(Check("database", self._check_database))
        if self._diagnosis is None:
            return database
        schema = await self._guarded(Check("schema", self._check_schema))
        has_tables = worst(schema) is not FindingLevel.ERROR
        found = [*database, *schema]
        for check in self._diagnosis.checks():
            if has_tables or not check.needs_tables:
                found += await self._guarded(check)
        found += await self._guarded(Check("zones", self._check_zones))
        if has_tables:
            found += await self._examine_tables()
        return found

    async def _examine_tables(self) -> list[Finding]:
        opening = await self._guarded(Check("store", self._open))
        if opening:
            return opening
        found = []
        for name, run in (
            ("work", self._check_work),
            ("schedules", self._check_schedules),
            ("tasks", self._check_tasks),
        ):
            found += await self._guarded(Check(name, run))
        return found

    async def _guarded(self, check: Check) -> list[Finding]:
        """Make the check. Whatever it raises is a finding, too."""
        name = check.name
        try:
            async with asyncio.timeout(self._timeout.total_seconds()):
                return _shorten(name, await check.run())
        except TimeoutError:
            text = f"there was no answer within {format_duration(self._timeout)}."
        except DuetimeError as error:
            if (
                isinstance(error, StorageError)
                and self._diagnosis is not None
                and self._diagnosis.is_refusal(error)
            ):
                what = str(error.__cause__).splitlines()[0]
                return [Finding.of(name, "not_allowed", role=_READER, text=what)]
            text = str(error)
        except Exception as error:  # noqa: BLE001 - one broken check must not hide the others
            text = f"{type(error).__name__}: {error}"
        code = "database_unusable" if name == "database" else "check_failed"
        return [Finding.of(name, code, text=hide_passwords(text))]

    # The database

    async def _check_database(self) -> Sequence[Finding]:
        url = self._app.settings.database
        file = file_of(url)
        if file is not None and not await asyncio.to_thread(Path(file).exists):
            return [Finding.of("database", "database_missing", file=file)]
        diagnosis = await asyncio.to_thread(make_diagnosis, self._app.settings, self._thresholds)
        asked = time.monotonic()
        version = await diagnosis.version()
        took = round((time.monotonic() - asked) * 1000)
        self._diagnosis = diagnosis
        return [
            Finding.of(
                "database", "database_ok", database=show_url(url), took=took, version=version
            )
        ]

    async def _check_schema(self) -> Sequence[Finding]:
        migrator = await asyncio.to_thread(make_migrator, self._app.settings)
        status = await asyncio.to_thread(read_status, migrator)
        versions = {"version": status.version, "latest": status.latest}
        if status.version == 0:
            return [Finding.of("schema", "schema_missing")]
        if status.version != status.latest:
            code = "schema_old" if status.version < status.latest else "schema_newer"
            return [Finding.of("schema", code, **versions)]
        if not status.functions_current:
            return [Finding.of("schema", "functions_differ")]
        return [Finding.of("schema", "schema_ok", **versions)]

    async def _check_zones(self) -> Sequence[Finding]:
        version = await asyncio.to_thread(_zone_version)
        year = re.match(r"\d{4}", version)
        is_old = year is not None and int(year[0]) < time.gmtime().tm_year - 1
        return [Finding.of("zones", "zones_old" if is_old else "zones_ok", version=version)]

    # What is in the tables

    async def _open(self) -> Sequence[Finding]:
        store = await self._app.store()
        self._now = await store.now()
        self._workers = await store.workers()
        return []

    @property
    def _live(self) -> list[WorkerInfo]:
        return [worker for worker in self._workers if worker.lease_until > self._now]

    async def _check_work(self) -> Sequence[Finding]:
        """What `app.stats.problems` finds, and for each noun without a problem that all is well."""
        found = [
            _as_finding(problem)
            for problem in await self._app.stats.problems(late_after=self._thresholds.lateness)
        ]
        troubled = {finding.check for finding in found}
        if "workers" not in troubled:
            code = "workers_ok" if self._live else "workers_none"
            found.append(Finding.of("workers", code, count=len(self._live)))
        found += [
            Finding.of(noun, f"{noun}_ok")
            for noun in ("queues", "jobs", "reminders", "tables")
            if noun not in troubled
        ]
        return sorted(found, key=lambda finding: _NOUNS.index(finding.check))

    async def _check_schedules(self) -> Sequence[Finding]:
        found: list[Finding] = []
        healthy = ledgers = 0
        async for schedule in self._app.schedules.iterate():
            finding = self._examine_schedule(schedule)
            if finding is None and _should_have_fired(schedule) and ledgers < _LEDGERS:
                ledgers += 1
                finding = await self._examine_ledger(schedule)
            if finding is not None:
                found.append(finding)
            elif schedule.enabled:
                healthy += 1
        return found or [Finding.of("schedules", "schedules_ok", count=healthy)]

    def _examine_schedule(self, schedule: ScheduleInfo) -> Finding | None:
        if schedule.broken is not None or schedule.paused_at is not None:
            return None
        has_fired = schedule.last_run_at is not None
        if schedule.next_run_at is None:
            if has_fired or schedule.last_enqueued_at is not None:
                return None
            return Finding.of("schedules", "schedule_without_tick", **_named(schedule))
        late = self._now - schedule.next_run_at
        if late < self._thresholds.lateness:
            return None
        return Finding.of(
            "schedules",
            "schedule_behind" if has_fired else "schedule_never_fired",
            **_named(schedule),
            late=_seconds(late),
            missed=schedule.next_run_at,
        )

    async def _examine_ledger(self, schedule: ScheduleInfo) -> Finding | None:
        """Look for a tick that has passed: its schedule has never fired."""
        before = self._now - self._thresholds.lateness
        rows = await self._app.schedules.history(schedule.name, before=before, limit=1)
        if not rows:
            return None
        facts = _named(schedule)
        return Finding.of("schedules", "schedule_never_fired", **facts, missed=rows[0].run_at)

    async def _check_tasks(self) -> Sequence[Finding]:
        if not (self._app.tasks or self._live):
            return []  # There is nothing to compare with.
        known = {task for worker in self._live for task in worker.tasks} | {*self._app._known_tasks}
        waiting = await self._app.jobs.list(state=("pending", "retrying"), limit=_SAMPLE)
        missing = {job.task: f"Job {job.id}" for job in waiting if job.task not in known}
        async for schedule in self._app.schedules.iterate():
            if schedule.target not in known:
                missing[schedule.target] = f"The schedule {schedule.name!r}"
        found = [
            Finding.of("tasks", "task_missing", task=task, what=what)
            for task, what in sorted(missing.items())
        ]
        return found or [Finding.of("tasks", "tasks_ok")]


def _named(schedule: ScheduleInfo) -> dict[str, str]:
    """Its name, also as one word of a command line, however it is called."""
    return {"schedule": schedule.name, "word": shlex.quote(schedule.name)}


def _should_have_fired(schedule: ScheduleInfo) -> bool:
    return schedule.enabled and schedule.last_run_at is None and not schedule.policy.shadow


def _as_finding(problem: ProblemInfo) -> Finding:
    advice = [] if problem.detail is None else [problem.detail]
    if (action := problem.action) is not None:
        advice.append(f"{action.label}: `{action.command}`." if action.command else action.label)
    return Finding(
        check=_CHECKS_OF_PROBLEMS[problem.code],
        code=problem.code,
        level=FindingLevel(problem.severity),
        message=problem.sentence,
        advice=" ".join(advice),
        facts=problem.facts,
    )


def _shorten(check: str, findings: Sequence[Finding]) -> list[Finding]:
    """Keep the first findings of each code, and say how many there are beyond."""
    counts: Counter[str] = Counter()
    kept = []
    for finding in findings:
        counts[finding.code] += 1
        if counts[finding.code] <= _MOST:
            kept.append(finding)
    return kept + [
        Finding.of(check, "left_out", count=count - _MOST, of=code)
        for code, count in counts.items()
        if count > _MOST
    ]


def _zone_version() -> str:
    """The version of the data that `zoneinfo` reads: the system's, else the package's."""
    for folder in zoneinfo.TZPATH:
        source = Path(folder) / "tzdata.zi"
        if source.is_file():
            with source.open(errors="replace") as lines:
                found = re.match(r"# version (\S+)", lines.readline())
            return found[1] if found else f"in {folder}, of an unknown version"
        if Path(folder).is_dir():
            return f"in {folder}, of an unknown version"
    return str(import_module("tzdata").IANA_VERSION)


def _seconds(span: timedelta) -> timedelta:
    return timedelta(seconds=round(span.total_seconds()))
