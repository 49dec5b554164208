"""What workers counted of their attempts: written by them, read by people."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from duetime.domain.stats.series import (
    ALL_TASKS,
    RESOLUTIONS,
    SAMPLE_WINDOWS,
    AttemptSample,
    BucketCounts,
    Series,
    buckets_between,
    floor_to,
    make_series,
    resolution_of,
    sample_level,
)
from duetime.storage.store import Dialect, Statements, run_many

_SLICES = 100
_MAX_ROWS = 20_000
_counts = msgspec.json.Decoder(dict[str, int]).decode
_buckets = msgspec.json.Decoder(dict[int, int]).decode


class AttemptStats:
    """Statements that add to the counts of attempts, and read them."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def add(
        self,
        tallies: Mapping[tuple[int, str, datetime], BucketCounts],
        samples: Sequence[tuple[int, AttemptSample]],
        *,
        waits: bool = True,
    ) -> Statements:
        """Add to what was counted before, by this worker or another. Returns whether that was done:
        unless it `waits`, not if another one is adding just now."""
        places = sorted(tallies)
        if waits:
            yield from self._dialect.run("attempt_stats_lock", {})
        elif not (yield from self._dialect.run("attempt_stats_try_lock", {})):
            return False
        stored = yield from self._get(places)
        documents = []
        for place in places:
            total = stored.get(place, BucketCounts())
            total.add(tallies[place])
            documents.append(
                _document(place)
                | {
                    "counts": total.counts,
                    "lateness": _named(total.lateness),
                    "duration": _named(total.duration),
                    "busy_us": total.busy_us,
                }
            )
        yield from run_many(self._dialect, "attempt_stats_put", documents)
        if samples:
            yield from run_many(
                self._dialect,
                "attempt_samples_put",
                [{"level": level, **msgspec.structs.asdict(one)} for level, one in samples],
            )
        return True

    def series(self, window: timedelta, task: str | None) -> Statements:
        """Return the `Series` of a window that ends now."""
        now = yield from self._dialect.now()
        return (yield from self._series(now, window, task))

    def _series(self, now: datetime, window: timedelta, task: str | None) -> Statements:
        minutes = resolution_of(window).minutes
        times = list(buckets_between(now - window, now, minutes))
        name = ALL_TASKS if task is None else task
        stored = yield from self._get([(minutes, name, at) for at in times])
        tallies = {at: tally for (_, _, at), tally in stored.items()}
        series: Series = make_series(tallies, times, until=now, minutes=minutes, task=task)
        return series

    def completed(self, window: timedelta) -> Statements:
        """Return how many attempts completed in a window that ends now, by task."""
        now = yield from self._dialect.now()
        minutes = resolution_of(window).minutes
        since = floor_to(now - window, minutes)
        given = {"minutes": minutes, "since": since, "most": _MAX_ROWS}
        return dict((yield from self._dialect.run("attempt_stats_completed", given)))

    def samples(self, window: timedelta, task: str | None, limit: int) -> Statements:
        """Return some attempts of a window that ends now, the oldest first."""
        now = yield from self._dialect.now()
        lowest = sample_level(window)
        step = window / _SLICES
        slices = [
            [now - window + step * place, now - window + step * (place + 1)]
            for place in range(_SLICES)
        ]
        slices[-1][1] = now + timedelta(minutes=1)
        rows = yield from self._dialect.run(
            "attempt_samples_find",
            {
                "levels": list(range(lowest, len(SAMPLE_WINDOWS))),
                "slices": slices,
                "task": task,
                "most": -(-limit // _SLICES),
            },
        )
        moment = self._dialect.moment
        return [
            AttemptSample(
                job_id=job,
                task=name,
                outcome=outcome,
                run_at=moment(run_at),
                started_at=moment(started_at),
                finished_at=moment(finished_at),
            )
            for job, name, outcome, run_at, started_at, finished_at in rows[:limit]
        ]

    def prune(self) -> Statements:
        """Delete what is older than any window that shows it."""
        now = yield from self._dialect.now()
        old: list[dict[str, Any]] = [
            {"minutes": one.minutes, "level": None, "before": now - one.kept} for one in RESOLUTIONS
        ]
        old += [
            {"minutes": None, "level": level, "before": now - kept}
            for level, kept in enumerate(SAMPLE_WINDOWS)
        ]
        yield from self._dialect.run("attempt_stats_prune", old)

    def _get(self, places: Sequence[tuple[int, str, datetime]]) -> Statements:
        documents = [_document(place) for place in places]
        rows = yield from run_many(self._dialect, "attempt_stats_get", documents)
        return {
            (minutes, task, self._dialect.moment(at)): _read_tally(rest)
            for minutes, at, task, *rest in rows
        }


def _document(place: tuple[int, str, datetime]) -> dict[str, Any]:
    minutes, task, at = place
    return {"minutes": minutes, "task": task, "at": at}


def _read_tally(row: Sequence[Any]) -> BucketCounts:
    counts, lateness, duration, busy_us = row
    return BucketCounts(
        Counter(_counts(counts)),
        Counter(_buckets(lateness)),
        Counter(_buckets(duration)),
        busy_us,
    )


def _named(buckets: Mapping[int, int]) -> dict[str, int]:
    return {str(bucket): count for bucket, count in sorted(buckets.items())}
