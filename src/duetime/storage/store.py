"""The protocol that every backend fulfils. Each verb is one short transaction."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec

from duetime.domain.jobs.facets import ErrorGroup, JobFacets
from duetime.domain.jobs.job import (
    AttemptOutcome,
    ClaimedJob,
    Enqueued,
    FinishedJob,
    FoundJobs,
    JobFilter,
    JobInfo,
    JobResult,
    JobState,
    NewJob,
)
from duetime.domain.jobs.queue import Limits, QueueInfo
from duetime.domain.reasons import Reason

if TYPE_CHECKING:
    from duetime.domain.flows.flow import NewRecord
    from duetime.storage.reminders.tracking import Triggers

T = TypeVar("T")
Row = tuple[Any, ...]
Statement = tuple[str, Sequence[Any] | Mapping[str, Any]]
Statements = Generator[Statement, list[Row], Any]
"""A piece of work as SQL, without I/O: yields (statement, parameters), is sent the rows."""


class Dialect(Protocol):
    """How a backend runs a named statement with one JSON document, and reads its times."""

    @property
    def arms(self) -> bool:
        """Whether its SQL computes reminders: `rearm_these`, `scope_changed`."""

    @property
    def part(self) -> int:
        """How many items of a long list one statement takes."""

    def run(self, name: str, document: Any) -> Generator[Statement, list[Row], list[Row]]: ...

    def now(self) -> Generator[Statement, list[Row], datetime]: ...

    def installation(self) -> Generator[Statement, list[Row], str]:
        """What the keys of this installation carry; read once."""

    def moment(self, value: Any) -> datetime: ...


LEAD = timedelta(milliseconds=50)
"""An idle worker claims what falls due so soon, and holds it until then."""


def in_parts(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    """Yield the items, some at a time, in their order."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


def run_many(
    dialect: Dialect, name: str, documents: Sequence[Any]
) -> Generator[Statement, list[Row], list[Row]]:
    """Run a statement that takes a list, in parts; return the rows of all."""
    rows: list[Row] = []
    for part in in_parts(documents, dialect.part):
        rows += yield from dialect.run(name, part)
    return rows


class Lane(msgspec.Struct):
    """One (queue, priority) in the order of time and id, and up to which job all was seen."""

    queue: str
    priority: int
    floor: datetime
    floor_id: int = 0


class Exchange(msgspec.Struct):
    """What one round trip of a worker brought."""

    now: datetime | None = None
    """The database's clock; only if something was to be claimed."""
    refused: frozenset[int] = frozenset()
    """Finished jobs that were not accepted: this worker had lost them."""
    cancelled: frozenset[int] = frozenset()
    """Jobs that were to run again, and had been cancelled: they do not."""
    claimed: list[ClaimedJob] = []
    next_run_at: datetime | None = None
    """The earliest due time in the lanes, overdue included; only if `claimed` came back short."""
    lease_lost: bool = False
    """The worker's lease had run out, so nothing was claimed."""


class PollResult(msgspec.Struct, frozen=True):
    """What a worker reads once a second while it has nothing to do."""

    now: datetime
    next_run_at: datetime | None
    """The earliest due time in its queues that are not paused: overdue jobs count, limited queues
    too. Only if it was asked for."""
    limited: tuple[str, ...] = ()
    """Its queues that have limits."""
    parked: bool = False
    """Whether `unpark` has something to do."""
    quarantined: bool = False
    """Whether a quarantined job is due."""


class Beat(msgspec.Struct, frozen=True):
    """The answer to a heartbeat."""

    alive: bool
    """False: the lease had run out and the worker was declared dead."""
    rank: int = 0
    """How many live workers are older than this one."""
    cancelled: tuple[int, ...] = ()
    """Jobs held by this worker whose cancellation was requested."""
    fleet: int = 1
    """How many workers work on its queues, itself included, as far as that is known."""


class WorkerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A live worker as people see it."""

    id: int
    name: str
    queues: tuple[str, ...]
    tasks: tuple[str, ...]
    concurrency: int
    started_at: datetime
    seen_at: datetime
    lease_until: datetime
    running: int
    loop_lag: timedelta = timedelta(0)
    """By how much its event loop was behind, at most, before its last heartbeat: a handler that
    blocks it keeps all others waiting."""


class Rescued(msgspec.Struct, frozen=True):
    """A job that a dead worker held, and what became of it."""

    job_id: int
    task: str
    attempt: int
    state: JobState
    worker: str


def rescued_state(outcome: str, attempt: int) -> JobState:
    """The state of a job that was rescued: `outcome`, or given back after so many attempts."""
    if outcome in ("dead", "cancelled"):
        return JobState(outcome)
    return JobState.RETRYING if attempt else JobState.PENDING


class Heart(Protocol):
    """Renews a worker's lease over its own connection, from its own thread."""

    def beat(self, worker_id: int, lease: timedelta, lag: timedelta = timedelta(0)) -> Beat:
        """Renew the lease. `lag`: by how much the event loop was behind since the last beat."""
        ...

    def close(self) -> None: ...


class Sleeper(Protocol):
    """Lets a worker sleep without missing an enqueue."""

    @property
    def asleep(self) -> bool:
        """Whether every enqueue wakes us: no longer once the connection is lost."""

    @property
    def listening(self) -> bool:
        """Whether notifications reach us. If not, we poll."""

    async def fall_asleep(self, queues: Sequence[str]) -> bool:
        """From now on every enqueue wakes us. False: one is in flight; check again soon."""

    async def sleep(self, seconds: float) -> str:
        """Wait for a wake-up or the time; return the reason and forget it.

        `interrupted` if nothing but `interrupt` was called, `timed out`, else what woke us:
        `notified`, `announced`, `cancelled`, `reconnected`. What came before the call counts.
        """

    def announced(self) -> datetime | None:
        """The earliest time that jobs were enqueued for since the last call, if not for now."""

    async def wake_up(self) -> None:
        """We are awake: enqueues need not wake us."""

    def interrupt(self) -> None:
        """End a `sleep` from the same event loop."""

    async def cancelled_jobs(self) -> list[int]:
        """Return the jobs of this worker that are cancelled, if a cancellation was announced
        since the last call."""

    async def close(self) -> None: ...


MAX_CLAIMED_ARGS = 16 * 1024
"""Larger arguments do not come with the claim: they are read when the job starts."""


class Store(Protocol):
    """A backend. `open` before use; every method may raise `StorageError`."""

    placeholder: str
    """How a parameter is written in `Statements`: `%s` or `?`."""
    installation: str
    """What the keys of this installation carry; known as soon as a worker is registered."""

    @property
    def dialect(self) -> Dialect: ...

    @property
    def triggers(self) -> Triggers:
        """How it follows the rows of tracked tables."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def now(self) -> datetime: ...

    async def drive_clock(self, now: datetime | None) -> None:
        """For tests: stop the database's clock at `now`; None starts it again."""

    # Enqueue

    @property
    def hands_over(self) -> bool:
        """Whether there is `enqueue_held`."""

    async def enqueue_held(self, job: NewJob, worker_id: int) -> tuple[Enqueued, ClaimedJob | None]:
        """Enqueue a job without a key that is due now, and have this worker hold it with the same
        commit. None: it waits like any other, since the worker may not claim it now."""

    async def enqueue(self, jobs: Sequence[NewJob], *, waits: bool = True) -> list[Enqueued]:
        """Enqueue jobs in one transaction. Without `waits`: raise `TransactionConflict` soon, if
        another transaction holds a key and stays open."""

    def enqueue_in(self, jobs: Sequence[NewJob]) -> Statements:
        """The statements of an enqueue inside the caller's transaction; returns `[Enqueued]`."""

    # A worker's life

    async def register_worker(
        self,
        *,
        name: str,
        queues: Sequence[str],
        tasks: Mapping[str, Mapping[str, Any]],
        concurrency: int,
        lease: timedelta,
    ) -> int: ...

    async def remove_worker(self, worker_id: int) -> None: ...

    def heart(self) -> Heart: ...

    async def sleeper(
        self, worker_id: int, *, notified: Callable[[str], None] = lambda channel: None
    ) -> Sleeper:
        """`notified` is called for each notification, with its channel: `wake` or `cancel`."""

    # The hot path

    async def exchange(
        self,
        worker_id: int,
        *,
        finished: Sequence[FinishedJob] = (),
        closed: Sequence[int] = (),
        lanes: Sequence[Lane] = (),
        limited: Sequence[str] = (),
        want: int = 0,
        look_ahead: bool = False,
        lead: float = 0.0,
        in_turn: bool = False,
    ) -> Exchange:
        """Record finished jobs and claim due ones, fenced, in one transaction.

        It claims only if the worker's lease holds at that moment, however long it had to wait.
        With a `lead` also jobs that fall due within so many seconds: the worker holds them until
        then. `in_turn`: more is due than workers can take, so their claims need not be made at the
        same time.
        """

    async def next_run_at(self, queues: Sequence[str]) -> tuple[datetime, datetime | None]:
        """The database's clock, and the earliest due time of these queues, without those that are
        paused or have limits. Reads only."""

    async def finish_again(
        self, finished: Sequence[FinishedJob], closed: Sequence[int]
    ) -> Exchange:
        """Finish again what may or may not have been finished (the answer was lost). Idempotent."""

    async def disown(self, worker_id: int, known: Sequence[int], *, lead: float = 0.0) -> int:
        """Give back this worker's claims whose tokens are not `known`: their answer was lost.

        They are due at once, or after `lead` seconds if they may have been claimed so long ahead.
        """

    async def claim_quarantined(self, worker_id: int, queues: Sequence[str]) -> list[ClaimedJob]:
        """Claim one job that was held by two dead workers; it runs apart from others."""

    async def args_of(self, job_id: int) -> str:
        """The arguments of a job that were too large to come with its claim, as JSON."""

    async def release(self, jobs: Sequence[ClaimedJob]) -> None:
        """Give claimed jobs back, unstarted; their attempts do not count. Cancelled ones end
        as cancelled."""

    async def park(self, jobs: Sequence[ClaimedJob], reason: Reason) -> None:
        """Set aside claimed jobs whose task this worker does not know."""

    async def park_unreadable(self, queues: Sequence[str], *, most: int) -> dict[int, str]:
        """Of the next jobs of each lane set aside those whose rows cannot be read, whatever made
        them so; return why, for each. A claim failed on one of them: the others must go on."""

    async def unpark(
        self, tasks: Sequence[str], queues: Sequence[str], *, sparing: Collection[int] = ()
    ) -> int:
        """Put parked jobs of these tasks and queues, except `sparing`, back into `due`.

        No worker is woken: the caller knows these tasks and checks at once; another worker would
        only park them again.
        """

    def finish_in(self, finished: FinishedJob) -> Statements:
        """The statements of a fenced finish in the caller's transaction; returns a bool."""

    def finish_many_in(self, finished: Sequence[FinishedJob]) -> Statements:
        """Complete several, each fenced by itself; returns a bool for each."""

    def finish_steps_in(self, finished: Sequence[FinishedJob], runs: Sequence[int]) -> Statements:
        """Lock the runs of flows that these jobs do steps of, and complete the jobs as
        `finish_many_in` does; returns None for those whose run another transaction has locked."""

    runs_graphs: bool
    """Whether there are `end_steps_in`, `begin_run_in` and `end_run_in`: one statement each."""

    def end_steps_in(
        self, finished: Sequence[FinishedJob], document: Mapping[str, Any]
    ) -> Statements:
        """Complete jobs as `finish_steps_in` does, and carry out what the document says of the
        steps that they did, in one statement; claim for the worker that it names. Returns for each
        what `finish_steps_in` does and whether its claim is closed; and the claimed jobs. The
        jobs are given in the order of their tokens."""

    def begin_run_in(self, document: Mapping[str, Any]) -> Statements:
        """Begin a run of a graph, and suspend it; returns whether it did, whether its claim is
        closed, and the jobs that were claimed."""

    def end_run_in(self, document: Mapping[str, Any]) -> Statements:
        """End a run of a graph whose steps are all done; returns the outputs of its last steps by
        their numbers, None if something else is to be done first."""

    async def transact(
        self,
        statements: Statements,
        *,
        reads: bool = False,
        snapshot: bool = False,
        single: bool = False,
        computes: bool = False,
    ) -> Any:
        """Run statements in a transaction of their own, and return what they return.

        `reads`: it is one statement, which changes nothing. `snapshot`: they are several that
        change nothing, and see the same state. `single`: it is one statement, which needs no
        transaction around it. `computes`: there may be much to compute between them, which is done
        off the event loop.
        """

    @property
    def records_at_once(self) -> bool:
        """Whether `record_step` sends a record without waiting for anything first. Then a caller
        that is cancelled is released when the record is written."""

    async def record_step(self, record: NewRecord) -> bool | None:
        """Write one plain record of a flow's run, and return whether it was accepted. None: nothing
        was written, use `transact`."""

    def transaction(
        self, *, before_commit: Callable[[Any], Awaitable[None]] | None = None
    ) -> AbstractAsyncContextManager[Any]:
        """A database transaction on a connection of its own, for `ctx.transaction()`.

        The caller's own errors pass as they are, unless the connection broke off. All that is ours
        has the time limit of every call: to begin, `before_commit`, and the commit.
        """

    def transaction_sync(
        self, *, before_commit: Callable[[Any], None] | None = None
    ) -> AbstractContextManager[Any]: ...

    async def set_progress(self, job: ClaimedJob, progress: str) -> bool: ...

    # Housekeeping

    async def poll(
        self,
        queues: Sequence[str],
        tasks: Sequence[str],
        *,
        sparing: Collection[int] = (),
        checks: Sequence[Statements] = (),
        ahead: bool = True,
    ) -> tuple[PollResult, list[Any]]:
        """Return how the queues stand, and what each of the `checks` returns, in one transaction
        that reads only. `tasks` and `sparing`: as for `unpark`. `ahead`: also what is due next,
        which takes long while much is claimed."""

    def any_dead(self, *, sparing: int = 0) -> Statements:
        """Return whether `rescue` has something to do. Reads only."""

    async def rescue(self, *, sparing: int = 0) -> list[Rescued]:
        """Return to `due`, or declare dead, what dead workers held, all but that of `sparing`.

        What was claimed after the lease had run out cannot have begun: its attempt does not count.
        """

    async def prune(
        self, retention: Mapping[AttemptOutcome, timedelta], *, after: int, batch: int
    ) -> tuple[int, int]:
        """Remove jobs that finished longer ago than that, with their history: about a `batch`.

        Returns how many, and the id `after` which to continue; 0: from the beginning.
        """

    async def end_parked(self, age: timedelta, *, batch: int) -> list[int]:
        """End jobs that have been parked for longer than that as dead, a `batch` at most."""

    # Inspect. What people change is written once for all backends: see storage/jobs/changes.py.

    async def get(self, job_id: int) -> JobInfo | None: ...

    async def find(self, which: JobFilter) -> FoundJobs:
        """Newest first."""

    async def facets(self, which: JobFilter) -> JobFacets:
        """How many jobs match, by state, queue and task."""

    async def errors(self, which: JobFilter) -> list[ErrorGroup]:
        """How jobs that finished without success failed, the most frequent errors first."""

    async def queues(
        self,
        *,
        only: str | None = None,
        count_to: int | None = None,
        after: str | None = None,
        limit: int | None = None,
    ) -> list[QueueInfo]:
        """By name: those after one of them, or `only` one, of each of whose priorities no more than
        `count_to` jobs are counted."""

    async def limited_queues(self) -> dict[str, Limits]: ...

    async def workers(self) -> list[WorkerInfo]: ...

    async def change_mark(self) -> Any:
        """Return a value that differs once something has changed, perhaps some seconds later."""

    async def wait_finished(self, job_id: int, seconds: float) -> JobResult | None:
        """Return how the job finished, once it has; None if it has not after about `seconds`.

        However many jobs are waited for, a worker's calls do not queue behind them.
        """
