"""An enqueue as statements without I/O: for the store's connection, or the caller's own."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from itertools import chain, groupby
from operator import attrgetter, itemgetter
from typing import Any

import msgspec

from duetime.domain.checks import MAX_NAME_LENGTH, check_queue
from duetime.domain.jobs.job import Enqueued, NewJob
from duetime.errors import InvalidInput
from duetime.storage.sqlite.dialect import maybe_to_us, repeat_values, span_to_us, to_us
from duetime.storage.store import Row

_ROWS = (512, 64, 8)
"""How many rows one INSERT carries: fewer steps, and statements that are prepared once."""

Write = Generator[tuple[str, Sequence[Any]], list[Row], None]
Written = Generator[tuple[str, Sequence[Any]], list[Row], list[Enqueued]]


class Kind(msgspec.Struct, frozen=True):
    """What jobs of one call mostly have in common: all but their arguments and keys."""

    task: str
    queue: str
    priority: int
    run_at: int
    hold: int | None
    partition: str | None
    max_attempts: int
    timeout: int | None
    expires_at: int | None
    trace: str | None
    flow: bool | None


Plan = tuple[int, str, str | None, Kind]
"""A job as it will be stored: id, arguments, key, kind."""
_kind_of = itemgetter(3)
_features = attrgetter(
    "task", "queue", "priority", "run_at", "delay", "on_conflict", "hold", "partition",
    "max_attempts", "timeout", "expires_at", "expires_after", "trace", "flow",
)  # fmt: skip
"""All but the arguments and the key."""


class Enqueue:
    """One enqueue of any number of jobs. `queues` says when the first job of each is due."""

    def __init__(self, sql: Mapping[str, str], jobs: Sequence[NewJob], now: int) -> None:
        self._sql = sql
        self._jobs = jobs
        self._now = now
        self._new: list[Plan] = []
        self.queues: dict[str, int] = {}
        # Checked before anything is written.
        self._args = [_read_args(job) for job in jobs]
        self._samples: list[NewJob] = []
        self._sample_of: list[int] = []
        alike: tuple[object, ...] = ()
        for job in jobs:
            features = _features(job)
            if features != alike:
                alike = features
                _check(job)
                self._samples.append(job)
            self._sample_of.append(len(self._samples) - 1)

    def statements(self) -> Written:
        if not self._jobs:
            return []
        sql = self._sql
        [(last,)] = yield sql["reserve_ids"], (len(self._jobs),)
        kinds = [_kind(job, self._now) for job in self._samples]
        job_id: int = last - len(self._jobs)
        if all(job.key is None for job in self._jobs):
            yield from self._add_without_keys(job_id + 1, kinds)
            return [Enqueued(job_id, "created") for job_id in range(job_id + 1, last + 1)]
        answers: list[Enqueued] = []
        for job, args, sample in zip(self._jobs, self._args, self._sample_of, strict=True):
            job_id += 1
            plan = (job_id, args, job.key, kinds[sample])
            if job.key is None:
                self._new.append(plan)
                answers.append(Enqueued(job_id, "created"))
            else:
                answers.append((yield from self._enqueue_keyed(plan, job.on_conflict)))
        yield from self._flush()
        return answers

    def _wake(self, kind: Kind) -> None:
        first = self.queues.get(kind.queue)
        if first is None or kind.run_at < first:
            self.queues[kind.queue] = kind.run_at

    def _enqueue_keyed(
        self, plan: Plan, on_conflict: str
    ) -> Generator[tuple[str, Sequence[Any]], list[Row], Enqueued]:
        sql = self._sql
        job_id, args, key, kind = plan
        taken = yield sql["take_key"], (kind.task, key, job_id, kind.hold, self._now)
        if taken:
            self._new.append(plan)
            return Enqueued(job_id, "created")
        [(holder,)] = yield sql["key_holder"], (kind.task, key)
        if on_conflict != "replace":
            return Enqueued(holder, "rejected" if on_conflict == "reject" else "existing")
        # The holder may be of this very call.
        yield from self._flush()
        replaced = yield (
            sql["replace_due"],
            (kind.run_at, kind.queue, kind.priority, kind.partition, holder),
        )
        if not replaced:
            replaced = yield (
                sql["replace_parked"],
                (kind.run_at, kind.queue, kind.priority, kind.partition, holder),
            )
        if replaced:
            yield (
                sql["replace_job"],
                (args, kind.queue, kind.priority, kind.partition, kind.expires_at, holder),
            )
            self._wake(kind)
            return Enqueued(holder, "replaced")
        # It is running or finished: the new job runs separately.
        yield sql["move_key"], (job_id, kind.hold, kind.task, key)
        self._new.append(plan)
        return Enqueued(job_id, "created")

    def _add_without_keys(self, first: int, kinds: Sequence[Kind]) -> Write:
        """Add all jobs; the first gets the id `first`, and so on."""
        start = 0
        for sample, group in groupby(self._sample_of):
            end = start + sum(1 for _ in group)
            ids = range(first + start, first + end)
            yield from self._add(ids, self._args[start:end], [None] * len(ids), kinds[sample])
            start = end

    def _flush(self) -> Write:
        new, self._new = self._new, []
        for kind, group in groupby(new, _kind_of):
            ids, args, keys, _ = zip(*group, strict=True)
            yield from self._add(ids, args, keys, kind)

    def _add(
        self, ids: Sequence[int], args: Sequence[str], keys: Sequence[str | None], kind: Kind
    ) -> Write:
        """Add jobs of one kind. No other job of this call has an id between theirs."""
        self._wake(kind)
        shared = (
            kind.task, kind.queue, kind.priority, kind.hold, kind.partition, kind.max_attempts,
            kind.timeout, kind.expires_at, self._now, kind.trace, kind.flow,
        )  # fmt: skip
        due = (kind.queue, kind.priority, kind.run_at, kind.partition)
        start = 0
        for rows in _ROWS:
            while len(ids) - start >= rows:
                part = slice(start, start + rows)
                values = chain.from_iterable(zip(ids[part], args[part], keys[part], strict=True))
                yield repeat_values(self._sql["copy_job"], rows), [*shared, *values]
                yield self._sql["copy_due"], (*due, ids[start], ids[start + rows - 1])
                start += rows
        for job_id, text, key in zip(ids[start:], args[start:], keys[start:], strict=True):
            alone = (
                job_id, kind.task, kind.run_at, text, kind.queue, kind.priority, key, kind.hold,
                kind.partition, kind.max_attempts, kind.timeout, kind.expires_at, self._now,
                kind.trace, kind.flow,
            )  # fmt: skip
            yield self._sql["add_job"], alone


def _kind(job: NewJob, now: int) -> Kind:
    """Return what the job is like, with its times."""
    if job.run_at is not None:
        run_at = to_us(job.run_at)
    else:
        run_at = now if job.delay is None else now + span_to_us(job.delay)
    expires_at = None if job.expires_at is None else to_us(job.expires_at)
    if expires_at is None and job.expires_after is not None:
        expires_at = run_at + span_to_us(job.expires_after)
    return Kind(
        job.task, job.queue, job.priority, run_at, maybe_to_us(job.hold), job.partition,
        job.max_attempts, maybe_to_us(job.timeout), expires_at,
        None if job.trace is None else msgspec.json.encode(job.trace).decode(),
        job.flow or None,
    )  # fmt: skip


def _read_args(job: NewJob) -> str:
    args = str(job.args, "utf-8")
    if not args.startswith("{") and not args.lstrip().startswith("{"):
        raise InvalidInput(f"The arguments of task {job.task} must be a JSON object.")
    return args


def _check(job: NewJob) -> None:
    if not job.task or len(job.task) > MAX_NAME_LENGTH:
        raise InvalidInput(
            f"The task name of a job must have between 1 and {MAX_NAME_LENGTH} characters."
        )
    check_queue(job.queue)
    if not 0 <= job.priority <= 9:
        raise InvalidInput(f"priority must be between 0 (first) and 9 (last), got {job.priority}.")
    if not 1 <= job.max_attempts <= 10_000:
        raise InvalidInput(f"max_attempts must be between 1 and 10000, got {job.max_attempts}.")
    if job.on_conflict not in ("return", "reject", "replace"):
        raise InvalidInput(
            f"on_conflict must be 'return', 'reject' or 'replace', got {job.on_conflict!r}."
        )
