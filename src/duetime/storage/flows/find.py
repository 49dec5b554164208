"""Which runs of flows match a filter, newest first, and what people see of them.

A run's state is where its job stands and what it waits for, so the ids come from the indexes that
hold runs in the wanted states. Other jobs are not read, however many there are.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.flows.flow import StepInfo
from duetime.domain.flows.graph import is_item
from duetime.domain.flows.run import STOPS, FlowInfo, FlowState, parent_of, state_of_run
from duetime.domain.jobs.job import JobState
from duetime.domain.reasons import describe_error, read_reason
from duetime.storage.flows.graphs import GraphStatements
from duetime.storage.flows.runs import FlowStatements, read_step
from duetime.storage.store import Dialect, Row, Statements

_NEWEST = 2**63 - 1
_LEAST_PAGE = 100
_NEVER = 8000
"""A run that waits for something without a time is due in a year after this."""
_SOURCES: dict[FlowState, tuple[str, ...]] = {
    FlowState.PENDING: ("flow_due_ids",),
    FlowState.RUNNING: ("flow_running_ids", "flow_due_ids"),
    FlowState.SLEEPING: ("flow_open_ids",),
    FlowState.WAITING: ("flow_open_ids",),
    FlowState.RETRYING: ("flow_open_ids", "flow_due_ids"),
    FlowState.PARKED: ("flow_parked_ids",),
    FlowState.COMPENSATING: ("flow_due_ids", "flow_running_ids", "flow_undone_ids"),
    FlowState.COMPLETED: ("flow_ids",),
    FlowState.FAILED: ("flow_troubled_ids",),
    FlowState.CANCELLED: ("flow_troubled_ids",),
    FlowState.EXPIRED: ("flow_troubled_ids",),
    FlowState.SUPERSEDED: ("flow_troubled_ids",),
}
_OUTCOMES = {
    FlowState.FAILED: "dead",
    FlowState.CANCELLED: "cancelled",
    FlowState.EXPIRED: "expired",
    FlowState.SUPERSEDED: "superseded",
}


class RunFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Which runs: every field that is set must match."""

    states: tuple[FlowState, ...] = ()
    flow: str | None = None
    key: str | None = None
    before: int | None = None
    limit: int = 50


class FindRuns:
    """Statements that find runs of flows and read them."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def find(self, which: RunFilter) -> Statements:
        """Return a `FlowInfo` for each run that matches."""
        found: list[FlowInfo] = []
        before = _NEWEST if which.before is None else which.before
        while len(found) < which.limit:
            ids, floor = yield from self._next_ids(which, before)
            infos = yield from self.infos(ids)
            found += [info for info in infos if not which.states or info.state in which.states]
            if floor is None:
                break
            before = floor
        return found[: which.limit]

    def infos(self, ids: Sequence[int], *, full: bool = False) -> Statements:
        """Return a `FlowInfo` for each run that exists, in the order of `ids`. `full`: with its
        result."""
        if not ids:
            return []
        now = yield from self._dialect.now()
        rows = yield from self._dialect.run("flow_infos", {"ids": list(ids), "full": full})
        waits: dict[int, list[StepInfo]] = {}
        open_runs = [row[0] for row in rows if not JobState(row[4]).finished]
        if open_runs:
            for run, *step in (yield from self._dialect.run("flow_open_steps", open_runs)):
                waits.setdefault(run, []).append(read_step(self._dialect, step))
        found = {row[0]: self._info(row, tuple(waits.get(row[0], ())), now) for row in rows}
        return [found[run] for run in ids if run in found]

    def steps(self, run: int) -> Statements:
        """Return what a run has recorded, in order; of a graph with what each step waits for."""
        steps = yield from FlowStatements(self._dialect).steps(run)
        graphs = yield from GraphStatements(self._dialect).runs([run])
        shape = graphs[run].shape if run in graphs else None
        if shape is None:
            return steps
        return [
            msgspec.structs.replace(step, after=shape[step.name].after)
            if step.seq > 0 and not is_item(step.seq) and step.name in shape
            else step
            for step in steps
        ]

    def _next_ids(self, which: RunFilter, before: int) -> Statements:
        """Return candidates below `before`, newest first, and the id down to which they are
        complete. That is None if there are no more."""
        page = max(which.limit, _LEAST_PAGE)
        ids: set[int] = set()
        floor: int | None = None
        document = {
            "before": before,
            "page": page,
            "flow": which.flow,
            "key": which.key,
            "states": which.states,
            "outcomes": [_OUTCOMES[state] for state in which.states if state in _OUTCOMES],
        }
        for source in _sources(which):
            rows = yield from self._dialect.run(source, document)
            ids.update(row[0] for row in rows)
            if len(rows) == page:
                floor = max(floor or 0, rows[-1][0])
        return sorted((i for i in ids if i >= (floor or 0)), reverse=True), floor

    def _info(self, row: Row, waits: tuple[StepInfo, ...], now: datetime) -> FlowInfo:
        (
            run, flow, queue, priority, state, args, key, run_at, created_at, finished_at, worker,
            claimed_at, code, error, facts, parked, started_at, stop, undone, result,
        ) = row  # fmt: skip
        job = JobState(state)
        due = self._maybe_moment(run_at)
        started = self._maybe_moment(started_at) or self._maybe_moment(claimed_at)
        return FlowInfo(
            id=run,
            flow=flow,
            state=state_of_run(
                job,
                waits,
                is_due=due is not None and due <= now,
                has_begun=started is not None,
                is_stopping=stop in STOPS,
                is_undone=bool(undone),
            ),
            args=msgspec.json.decode(args),
            key=key,
            queue=queue,
            priority=priority,
            parent=parent_of(key),
            created_at=self._dialect.moment(created_at),
            started_at=started,
            run_at=None if due is None or due.year > _NEVER else due,
            finished_at=self._maybe_moment(finished_at),
            worker=worker,
            waits=waits,
            error_code=code if job.finished else None,
            error=describe_error(code, _decoded(facts), error) if job.finished else None,
            parked_reason=read_reason(parked),
            result=_decoded(result),
        )

    def _maybe_moment(self, value: Any) -> datetime | None:
        return None if value is None else self._dialect.moment(value)


def _sources(which: RunFilter) -> list[str]:
    if which.key is not None:
        return ["flow_keyed_ids"]
    if not which.states:
        return ["flow_ids"]
    return list(dict.fromkeys(source for state in which.states for source in _SOURCES[state]))


def _decoded(text: str | None) -> Any:
    return None if text is None else msgspec.json.decode(text)
