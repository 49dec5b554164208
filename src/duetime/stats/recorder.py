"""Counts the attempts of a worker in memory, and adds the counts to the database every few seconds.

The hot path writes nothing for it: see docs/decisions/0017-counted-by-workers.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from random import Random

from duetime.domain.jobs.job import AttemptOutcome, FinishedJob
from duetime.domain.stats.histogram import bucket_of
from duetime.domain.stats.series import (
    ALL_TASKS,
    RESOLUTIONS,
    SAMPLE_SHARES,
    AttemptSample,
    BucketCounts,
    floor_to,
)
from duetime.engine.followers import Follower, WorkerView
from duetime.errors import DatabaseCorrupted, StorageError
from duetime.storage.stats.attempts import AttemptStats

_WRITE_SECONDS = 10.0
_AGAIN_SECONDS = 1.0
"""When it tries again after another worker was writing."""
_MEASURED = 32
"""Of a larger batch, only so many attempts are measured; each counts for several."""
_SAMPLES = 3
"""How many attempts of each task are kept as samples in each round."""
_MAX_SAMPLES = 30
_MAX_TASKS = 500
"""Tasks beyond these are counted in the sum only: jobs may name tasks without end."""
_COMPLETED = AttemptOutcome.COMPLETED
_MICROSECOND = timedelta(microseconds=1)


class Recorder(Follower):
    """Follows every attempt of one worker."""

    name = "stats"
    every_attempt = True

    def __init__(self, worker: WorkerView, random: Random | None = None) -> None:
        self._store = worker.store
        self._statements = AttemptStats(worker.store.dialect)
        self._random = random or Random()
        self._tallies: dict[tuple[datetime, str], BucketCounts] = {}
        self._samples: dict[str, list[tuple[int, AttemptSample]]] = {}

    def attempted(self, attempts: Sequence[FinishedJob]) -> None:
        """Count what has just been recorded."""
        last = attempts[-1]
        ended_at = last.job.claimed_at + last.finished_us * _MICROSECOND
        minute = floor_to(ended_at.astimezone(UTC), 1)
        self._count(minute, attempts)
        stride = -(-len(attempts) // _MEASURED)
        for one in attempts[self._random.randrange(stride) :: stride] if stride > 1 else attempts:
            if one.finished_us > one.started_us or one.outcome is _COMPLETED:
                self._measure(minute, one, stride)

    def _count(self, minute: datetime, attempts: Sequence[FinishedJob]) -> None:
        for task, count in Counter([one.job.task for one in attempts]).items():
            self._tally(minute, task).counts[_COMPLETED.value] += count
        for one in [one for one in attempts if one.outcome is not _COMPLETED]:
            counts = self._tally(minute, one.job.task).counts
            counts[_COMPLETED.value] -= 1
            counts[one.outcome.value] += 1

    def _measure(self, minute: datetime, one: FinishedJob, weight: int) -> None:
        job = one.job
        late = max(0, (job.claimed_at - job.run_at) // _MICROSECOND + one.started_us)
        took = one.finished_us - one.started_us
        tally = self._tally(minute, job.task)
        tally.lateness[bucket_of(late)] += weight
        tally.duration[bucket_of(took)] += weight
        tally.busy_us += took * weight
        self._sample(one, late)

    def _sample(self, one: FinishedJob, late: int) -> None:
        """Keep the latest of each task, and some others at random."""
        kept = self._samples.setdefault(one.job.task, [])
        if len(kept) >= _SAMPLES:
            if late > kept[0][0]:
                place = 0
            elif self._random.random() < 0.1:
                place = self._random.randrange(1, _SAMPLES)
            else:
                return
        elif len(self._samples) > _MAX_SAMPLES:
            return
        else:
            place = len(kept)
        job = one.job
        sample = AttemptSample(
            job_id=job.id,
            task=job.task,
            outcome=one.outcome.value,
            run_at=job.run_at,
            started_at=job.claimed_at + one.started_us * _MICROSECOND,
            finished_at=job.claimed_at + one.finished_us * _MICROSECOND,
        )
        kept[place : place + 1] = [(late, sample)]

    def _tally(self, minute: datetime, task: str) -> BucketCounts:
        found = self._tallies.get((minute, task))
        if found is None:
            if len(self._tallies) >= _MAX_TASKS and task != ALL_TASKS:
                return self._tally(minute, ALL_TASKS)
            found = self._tallies[minute, task] = BucketCounts()
        return found

    async def repair(self) -> float:
        """Write what was counted, unless another worker is writing just now."""
        written = await self._write(waits=False)
        # Not all workers at the same moment.
        return (_WRITE_SECONDS if written else _AGAIN_SECONDS) * self._random.uniform(0.75, 1.25)

    async def _write(self, *, waits: bool) -> bool:
        if not self._tallies:
            return True
        tallies, self._tallies = self._tallies, {}
        samples, self._samples = self._samples, {}
        written = False
        try:
            add = self._statements.add(sum_up(tallies), self._leveled(samples), waits=waits)
            written = bool(await self._store.transact(add))
        finally:
            if not written:
                for key, tally in tallies.items():
                    self._tally(*key).add(tally)
        return written

    async def close(self) -> None:
        try:
            await self._write(waits=True)
        except DatabaseCorrupted:
            raise
        except StorageError:
            # Then a few seconds of one worker are missing.
            pass

    async def prune(self) -> float | None:
        await self._store.transact(self._statements.prune())
        return None

    def _leveled(
        self, samples: dict[str, list[tuple[int, AttemptSample]]]
    ) -> list[tuple[int, AttemptSample]]:
        """Each sample with its level: the higher, the longer it is kept."""
        found = [sample for kept in samples.values() for _, sample in kept]
        if len(found) > _MAX_SAMPLES:
            found = self._random.sample(found, _MAX_SAMPLES)
        return [(self._level(), sample) for sample in found]

    def _level(self) -> int:
        chance = self._random.random()
        return sum(chance < 1 / share for share in SAMPLE_SHARES)


def sum_up(
    tallies: dict[tuple[datetime, str], BucketCounts],
) -> dict[tuple[int, str, datetime], BucketCounts]:
    """Counts of minutes as counts of every resolution, for each task and for all."""
    sums: dict[tuple[int, str, datetime], BucketCounts] = {}
    for (minute, task), tally in tallies.items():
        for resolution in RESOLUTIONS:
            at = floor_to(minute, resolution.minutes)
            for name in {task, ALL_TASKS}:
                sums.setdefault((resolution.minutes, name, at), BucketCounts()).add(tally)
    return sums
