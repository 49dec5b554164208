"""The metrics of a process and its database, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from duetime.telemetry.tally import BOUNDS, OTHER, Histogram, Tally, merged

try:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        Metric,
    )
    from prometheus_client.exposition import generate_latest
except ImportError as error:
    raise ImportError(
        "Metrics require an extra package: pip install 'duetime[metrics]'."
    ) from error

if TYPE_CHECKING:
    from duetime.storage.jobs.gauges import Gauges

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Of the text that `Duetime.metrics` returns, for the header of an HTTP response."""

_WAKEUPS = {"timed out": "time"}


class Metrics:
    """A collector for a registry of prometheus-client: what a process counted, and the `gauges` of
    its database as they were last read; None if it cannot be reached.

    Only tasks that are `known` are named; all others count as `other`.
    """

    def __init__(
        self,
        tally: Tally,
        known: Callable[[], Collection[str]],
        gauges: Callable[[], Gauges | None],
    ) -> None:
        self._tally = tally
        self._known = known
        self._gauges = gauges

    def text(self) -> str:
        """Return all of it as text."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        return generate_latest(registry).decode()

    def collect(self) -> Iterator[Metric]:
        """Called by the registry, on any thread."""
        tally, known = self._tally.copy(), self._known()
        yield from _jobs(tally, known)
        yield from _worker(tally)
        gauges = self._gauges()
        yield _gauge("database_up", "Whether the database could be read.", gauges is not None)
        if gauges is not None:
            yield from _database(gauges)


def _jobs(tally: Tally, known: Collection[str]) -> Iterator[Metric]:
    def shown(task: str) -> str:
        return task if task in known else OTHER

    finished = _summed(((shown(task), how), n) for (task, how), n in tally.finished.items())
    yield _counter(
        "job_claimed",
        "Jobs that a worker of this process claimed.",
        ("job_type", "worker_id"),
        _summed(((shown(task), worker), n) for (task, worker), n in tally.claimed.items()),
    )
    yield _counter(
        "job_completed",
        "Attempts that ended, by outcome: completed, retried, snoozed, dead, cancelled, expired.",
        ("job_type", "status"),
        finished,
    )
    yield _counter(
        "job_retries",
        "Attempts that failed and will be retried.",
        ("job_type",),
        {(task,): n for (task, how), n in finished.items() if how == "retried"},
    )
    yield _histogram(
        "job_processing_seconds", "How long handlers ran.", "job_type", tally.run_time, shown
    )
    yield _histogram(
        "job_queue_seconds",
        "From a job's due time to the start of its handler, for every attempt.",
        "job_type",
        tally.queue_time,
        shown,
    )
    yield _histogram(
        "lateness_seconds",
        "From the due time to the start of the first attempt: of jobs, ticks and reminders.",
        "kind",
        tally.lateness,
    )
    yield _counter(
        "tick_skipped",
        "Ticks of schedules that did not run when they were due, by what became of them.",
        ("status",),
        _single(tally.skipped_ticks),
    )
    yield _counter(
        "job_rescued",
        "Jobs that were taken from dead workers, by the state that they got.",
        ("state",),
        _single(tally.rescued),
    )


def _worker(tally: Tally) -> Iterator[Metric]:
    yield _counter(
        "job_notification_received",
        "Notifications of the database: wake (a job was enqueued) and cancel.",
        ("channel",),
        _single(tally.notifications),
    )
    yield _counter(
        "job_poll_scanned",
        "Jobs that were claimed after a wake-up by time, without a notification.",
        (),
        {(): tally.claimed_by_time},
    )
    yield _counter(
        "worker_wakeups",
        "Wake-ups of sleeping workers, by reason.",
        ("reason",),
        {(_WAKEUPS.get(reason, reason),): n for reason, n in tally.wakeups.items()},
    )
    yield _counter(
        "claims",
        "Claims, by result: claimed (it brought jobs) or empty.",
        ("result",),
        _single(tally.claims),
    )
    yield _histogram(
        "claim_seconds", "How long the database took to answer a claim.", None, tally.claim_time
    )
    yield _histogram(
        "event_loop_lag_seconds",
        "How late the event loop of a worker ran what was due, measured four times a second.",
        None,
        tally.loop_lag,
    )
    for event, name, what in _RARE:
        yield _counter(name, what, (), {(): tally.events[event]})
    states = {worker: read() for worker, read in tally.workers.items()}
    for field, name, what in _STATES:
        family = GaugeMetricFamily(f"duetime_{name}", what, labels=["worker_id"])
        for worker, state in states.items():
            family.add_metric([worker], float(getattr(state, field)))
        yield family


_RARE = (
    ("lease_lost", "worker_lease_losses", "Leases that workers of this process lost."),
    (
        "claim_lost",
        "claim_losses",
        "Outcomes that were not recorded, since another worker had taken the job.",
    ),
    (
        "transaction_conflict",
        "transaction_conflicts",
        "Calls that were repeated because of a deadlock or a lock that could not be acquired.",
    ),
)
_STATES = (
    ("running", "worker_running_jobs", "Jobs whose handlers run."),
    ("waiting", "worker_waiting_jobs", "Claimed jobs that wait for a free runner."),
    ("concurrency", "worker_concurrency", "How many jobs the worker runs at once."),
    (
        "listening",
        "worker_listener_up",
        "Whether notifications reach the worker. If not, it polls.",
    ),
)


def _database(gauges: Gauges) -> Iterator[Metric]:
    depth = GaugeMetricFamily(
        "duetime_job_queue_depth", "Jobs that are due and wait for a worker.", labels=["job_type"]
    )
    scheduled = GaugeMetricFamily(
        "duetime_job_scheduled", "Jobs that wait for their time.", labels=["job_type"]
    )
    for task, waiting in gauges.waiting.items():
        depth.add_metric([task or OTHER], waiting.due)
        scheduled.add_metric([task or OTHER], waiting.later)
    yield depth
    yield scheduled
    yield _gauge(
        "job_queue_depth_estimated",
        "Whether the depths are estimated from a sample, since many jobs wait.",
        gauges.estimated,
    )
    oldest = GaugeMetricFamily(
        "duetime_oldest_due_seconds",
        "For how long the first job of a queue has been due.",
        labels=["queue", "paused"],
    )
    for queue, first in gauges.oldest.items():
        oldest.add_metric([queue, "yes" if first.paused else "no"], first.age)
    yield oldest
    yield _gauge("dead_jobs", "Jobs that are dead, of the newest 500.", gauges.dead)
    yield _gauge("parked_jobs", "Jobs that no worker can run, up to 500.", gauges.parked)
    yield _gauge("workers", "Workers whose lease holds.", gauges.workers)
    schedules = GaugeMetricFamily(
        "duetime_schedules", "Schedules, up to 10,000: active or stopped.", labels=["state"]
    )
    schedules.add_metric(["active"], gauges.schedules)
    schedules.add_metric(["stopped"], gauges.stopped_schedules)
    yield schedules
    yield _gauge(
        "missed_ticks",
        "Ticks of schedules that were found missed in the last hour, up to 500.",
        gauges.missed_ticks,
    )
    tuples = GaugeMetricFamily(
        "duetime_dead_tuples", "Rows that vacuum has yet to remove.", labels=["table"]
    )
    for table, count in gauges.dead_tuples.items():
        tuples.add_metric([table], count)
    yield tuples


def _gauge(name: str, what: str, value: float) -> Metric:
    return GaugeMetricFamily(f"duetime_{name}", what, value=float(value))


def _counter(
    name: str, what: str, labels: tuple[str, ...], counts: Mapping[tuple[str, ...], int]
) -> Metric:
    family = CounterMetricFamily(f"duetime_{name}", what, labels=labels)
    for values, count in counts.items():
        family.add_metric(values, count)
    return family


def _histogram(
    name: str,
    what: str,
    label: str | None,
    histograms: Mapping[str, Histogram] | Histogram,
    shown: Callable[[str], str] = str,
) -> Metric:
    labels = () if label is None else (label,)
    family = HistogramMetricFamily(f"duetime_{name}", what, labels=labels)
    if isinstance(histograms, Histogram):
        _add_histogram(family, (), histograms)
        return family
    named: dict[str, list[Histogram]] = {}
    for key, one in histograms.items():
        named.setdefault(shown(key), []).append(one)
    for value, ones in named.items():
        _add_histogram(family, (value,), merged(ones))
    return family


def _add_histogram(
    family: HistogramMetricFamily, labels: tuple[str, ...], histogram: Histogram
) -> None:
    so_far = 0
    buckets: list[tuple[str, float]] = []
    for bound, count in zip((*map(str, BOUNDS), "+Inf"), histogram.counts, strict=True):
        so_far += count
        buckets.append((bound, so_far))
    family.add_metric(labels, buckets, histogram.total / 1e6)


def _single(counts: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(name,): count for name, count in counts.items()}


def _summed(
    counts: Iterable[tuple[tuple[str, ...], int]],
) -> dict[tuple[str, ...], int]:
    total: dict[tuple[str, ...], int] = {}
    for labels, count in counts:
        total[labels] = total.get(labels, 0) + count
    return total
