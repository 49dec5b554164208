"""What a worker does for reminders beside sending them: records those that ended without being
sent, and repairs what a crash left undone."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from random import uniform
from time import monotonic

from duetime.domain.jobs.job import FinishedJob
from duetime.domain.reminders.digest import DIGEST_TASK
from duetime.domain.reminders.reminder import REMIND_TASK
from duetime.engine.followers import Follower, Upkeep, WorkerView
from duetime.engine.services import AGAIN_SECONDS, GO_ON_SECONDS
from duetime.errors import DatabaseCorrupted, StorageError
from duetime.settings import Settings
from duetime.storage.reminders.deliveries import DeliveryStatements
from duetime.storage.reminders.pruning import PruneStatements, RuleScan
from duetime.storage.reminders.rearm import RearmStatements
from duetime.storage.reminders.unsent_digests import UnsentDigests
from duetime.storage.store import Statements
from duetime.telemetry.events import log_event

log = logging.getLogger("duetime.reminders")

_REPAIR_SECONDS = 5.0
_SCAN_SECONDS = 86_400.0
"""How often to look for rules that no reminder refers to: that reads all reminders."""
_FIRST_SCAN_SECONDS = 3600.0
_MANY_RULES = 1_000
"""If there are fewer, they are all kept."""


class ReminderFollower(Follower):
    """Follows the jobs of reminders and digests for one worker."""

    name = "reminders"
    tasks = frozenset({REMIND_TASK, DIGEST_TASK})
    check_every = _REPAIR_SECONDS

    def __init__(self, worker: WorkerView, settings: Settings) -> None:
        self._worker = worker.name
        self._store = worker.store
        dialect = worker.store.dialect
        self._deliveries = DeliveryStatements(dialect)
        self._digests = UnsentDigests(dialect)
        self._marks = RearmStatements(dialect)
        self._pruning = PruneStatements(dialect)
        self._retention = settings.retention["reminder"]
        self._pruned_to = 0
        """The id of the reminder to continue after."""
        self._scan: RuleScan | None = None
        self._scan_at = monotonic() + _FIRST_SCAN_SECONDS * uniform(0.0, 1.0)
        self._ended: list[FinishedJob] = []
        self._records = Upkeep("duetime-reminders", self._record)

    def finished(self, jobs: Sequence[FinishedJob]) -> None:
        # A reminder that was sent is recorded with its job's completion: nothing is left to do.
        if unsent := [finished for finished in jobs if not finished.recorded]:
            self._ended += unsent
            self._records.soon()

    async def flush(self) -> None:
        await self._records.done()

    async def _record(self) -> None:
        ended, self._ended = self._ended, []
        reminders = [end.job.id for end in ended if end.job.task == REMIND_TASK]
        digests = [end.job.id for end in ended if end.job.task == DIGEST_TASK]
        try:
            if reminders:
                await self._store.transact(self._deliveries.record_unsent(reminders))
            if digests:
                await self._fail_digests(digests)
        except StorageError as error:
            # Repaired within seconds, by this worker or another.
            if not isinstance(error, DatabaseCorrupted):
                log_event(
                    log,
                    logging.WARNING,
                    "reminders_delayed",
                    "Reminders that were not sent could not be recorded at once: %(error)s",
                    worker=self._worker,
                    error=str(error),
                )

    def check(self) -> Statements:
        return self._marks.check()

    async def repair(self) -> float:
        """Record what was not recorded, and enqueue the rearm jobs that got lost."""
        if jobs := await self._store.transact(self._deliveries.find_unrecorded(), reads=True):
            await self._store.transact(self._deliveries.record_unsent(jobs))
        await self._fail_digests(None)
        # Subjects that are to be armed again must not wait for a job that is gone.
        if await self._store.transact(self._marks.overdue(), reads=True) and (
            await self._store.transact(self._marks.repair())
        ):
            log_event(
                log,
                logging.INFO,
                "rearm_repaired",
                "Worker %(worker)s enqueued a lost job that arms reminders again.",
                worker=self._worker,
            )
        return _REPAIR_SECONDS

    async def _fail_digests(self, jobs: Sequence[int] | None) -> None:
        """Record failed digests, with all that is in them. `jobs`: only the digests of these."""
        for digest in await self._store.transact(self._digests.failed(jobs), reads=True):
            while await self._store.transact(self._digests.fail(digest)):
                pass

    async def prune(self) -> float | None:
        prune = self._pruning.prune(self._retention, self._pruned_to)
        gone, self._pruned_to = await self._store.transact(prune)
        await self._prune_scopes()
        continues = await self._prune_rules()
        if gone and self._pruned_to:
            return AGAIN_SECONDS
        return GO_ON_SECONDS if continues else None

    async def _prune_rules(self) -> bool:
        """Remove rules that no reminder refers to; return whether to continue soon."""
        if self._scan is None:
            if monotonic() < self._scan_at:
                return False
            begin = self._pruning.begin_rule_scan(enough=_MANY_RULES)
            self._scan = await self._store.transact(begin, reads=True)
        scan = self._scan
        if scan is not None and not scan.is_complete:
            await self._store.transact(self._pruning.scan_rules(scan), reads=True)
            return True
        if scan is not None and await self._store.transact(self._pruning.drop_rules(scan)):
            return True
        self._scan = None
        self._scan_at = monotonic() + _SCAN_SECONDS * uniform(0.75, 1.25)
        return False

    async def _prune_scopes(self) -> None:
        """Delete scopes whose rows are gone and that everything has left."""
        if refs := await self._store.transact(self._pruning.gone_scopes(), reads=True):
            await self._store.transact(self._pruning.drop_scopes(refs))
