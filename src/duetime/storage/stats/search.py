"""Searches over everything by a text, by a few reads of bounded size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from duetime.domain.stats.search import Match, MatchKind, best_first
from duetime.errors import DuetimeError
from duetime.storage.schedules.rows import read_timetable
from duetime.storage.store import Dialect, Row, Statements, WorkerInfo

_NUMBER = re.compile(r"[0-9]{1,18}", re.ASCII)
_MAX_SCANNED = 5000
"""Of schedules and other nouns of which there are few, any part of a name is searched for."""
_MAX_OF_KIND = 20


class Search:
    """Statements that find what a text may name."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def find(self, text: str, workers: Sequence[WorkerInfo], limit: int) -> Statements:
        """Return a `Match` for each, the best first."""
        number = int(text) if _NUMBER.fullmatch(text) else None
        given = {
            "text": text,
            "lower": text.lower(),
            "number": number,
            "most": _MAX_OF_KIND,
            "scanned": _MAX_SCANNED,
        }
        found: list[Match] = []
        for job_id, task, state, key, flow in (yield from self._dialect.run("search_jobs", given)):
            found.append(
                Match(
                    kind="flow" if flow else "job",
                    name=task,
                    id=job_id,
                    detail=state if key is None else f"{state}, key {key}",
                    exact=True,
                )
            )
        if number is not None:
            for reminder, subject, status in (
                yield from self._dialect.run("search_reminder", given)
            ):
                found.append(
                    Match(kind="reminder", name=subject, id=reminder, detail=status, exact=True)
                )
        rows = yield from self._dialect.run("search_names", given)
        found += [_named(row, text) for row in rows]
        lanes = yield from self._dialect.run("stats_lane_names", {"most": _MAX_SCANNED})
        found += _queues_and_workers(text, {name for name, _ in lanes}, workers)
        return best_first({(one.kind, one.name, one.id): one for one in found}.values(), limit)


def _named(row: Row, text: str) -> Match:
    kind, name, detail = row
    if kind == "schedule":
        detail = _describe(detail)
    return Match(kind=kind, name=name, detail=detail, exact=name == text)


def _describe(timetable: str) -> str | None:
    try:
        return read_timetable(timetable).describe()
    except DuetimeError:
        return None


def _queues_and_workers(
    text: str, queues: set[str], workers: Sequence[WorkerInfo]
) -> Iterator[Match]:
    queues = queues.union(*(worker.queues for worker in workers))
    names: list[tuple[MatchKind, str]] = [("queue", queue) for queue in sorted(queues)]
    names += [("worker", worker.name) for worker in workers]
    for kind, name in names:
        if text.lower() in name.lower():
            yield Match(kind=kind, name=name, exact=name == text)
