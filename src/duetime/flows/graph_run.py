"""The job of a graph's run: it starts what is ready, waits for what is not, and ends the run.

It does all of that in one transaction that holds the run's lock, in which it sees every row of the
run as it is. So it may be woken at any time, and any number of times.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from duetime.domain.flows.flow import StepState, Suspension, read_undo_key
from duetime.domain.flows.graph import (
    MAX_ITEMS,
    GraphKind,
    Node,
    Shape,
    compensations,
    count_pending,
    is_done,
    leaves,
    progress,
)
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.outcome import Cancel
from duetime.domain.reasons import Reason
from duetime.engine.context import Context
from duetime.engine.executor import code_of_error, describe_exception
from duetime.errors import ClaimLost, FlowTimeout, StepFailed, TransactionConflict
from duetime.flows.graph import describe_claimant, new_job, start_jobs, step_job
from duetime.flows.graph_code import GraphCode, Inputs, ranges
from duetime.flows.recorder import FIRST_BUSY_SECONDS, MAX_BUSY_SECONDS
from duetime.storage.flows.graphs import (
    CANCEL,
    FAILURE,
    FINISH,
    ITEM,
    GraphRow,
    GraphRun,
    GraphStatements,
    StepJob,
    change,
    compensation_row,
    new_rows,
)
from duetime.storage.jobs.changes import JobStatements
from duetime.storage.store import Statements, Store
from duetime.telemetry.traces import read_trace

if TYPE_CHECKING:
    from duetime.app import Duetime

_TIMED_OUT = "timed_out"
_SIGNAL_TIMEOUT = "signal_timeout"
_NO_CODE = "code_missing"
_LOOK_AGAIN = timedelta(seconds=1)
"""How often the run checks whether jobs that it cancelled have finished, if nothing wakes it."""
_LOOK_OFTEN = timedelta(milliseconds=200)
_PENDING = StepState.PENDING
_SMALL = 100
"""Of the steps of a graph: to compute on a thread takes longer than what is computed."""
_LOOK_FOR_CODE = timedelta(minutes=1)


class _Stop(NamedTuple):
    """Jobs of the run that are to be cancelled."""

    jobs: list[int]


class _Ended(NamedTuple):
    """How the run has ended."""

    result: Any = None
    error: BaseException | None = None
    """What the job of the run raises."""


async def run_graph(app: Duetime, code: GraphCode, ctx: Context) -> Any:
    """Go on with a run until it ends or waits; or undo one whose job has ended otherwise."""
    store = await app.store()
    if store.runs_graphs and read_undo_key(ctx.job.key) is None:
        if ctx.job.is_unrecorded:
            if await _begin_at_once(app, store, code, ctx):
                return None
        elif (ended := await _end_at_once(store, code, ctx)) is not None:
            return ended
    is_stopped = False
    wait = FIRST_BUSY_SECONDS
    while True:
        step = RunStep(GraphStatements(store.dialect), store, code, ctx, is_stopped=is_stopped)
        try:
            answer = await store.transact(step.perform(), computes=_is_large(code))
        except TransactionConflict:
            # A caller's transaction that signals the run is open. No connection waits for it.
            await asyncio.sleep(wait)
            wait = min(2 * wait, MAX_BUSY_SECONDS)
            continue
        match answer:
            case _Stop(jobs):
                why = Reason.of("run_stopped", run=ctx.id)
                await store.transact(JobStatements(store.dialect).cancel_many(jobs, reason=why))
                is_stopped = True
            case _Ended(error=BaseException() as error):
                raise error
            case _Ended(result=result):
                return result
            case "suspended":
                ctx.suspended = True
                return None
            case _:
                pass  # Something has happened meanwhile.


async def _begin_at_once(app: Duetime, store: Store, code: GraphCode, ctx: Context) -> bool:
    """Begin a run in one statement, with which this worker also claims its first steps. False: it
    is not as simple as that."""
    shape = code.declaration.shape
    ready = progress(shape, dict.fromkeys((node.name for node in shape.nodes), _PENDING)).ready
    if ctx.job.args is None or not ready or any(node.kind is not GraphKind.STEP for node in ready):
        return False
    places = {node.name: place for place, node in enumerate(ready, 1)}
    run = GraphRun.started(ctx.id, shape, ctx.job.args)
    jobs = [step_job(shape, ctx.id, node, read_trace(ctx.job.trace)) for node in ready]
    rows = [
        {**row, "state": StepState.RUNNING, "job": places[name]} if name in places else row
        for row in new_rows(ctx.id, shape)
        for name in [row["name"] if row["seq"] < shape.end else None]
    ]
    async with ctx.hand_over(1) as claimant:
        known = () if claimant is None else claimant.tasks
        document = {
            "run": ctx.id, "token": ctx.token, "started": ctx.started_us,
            "finished": ctx.elapsed_us,
            "deadline": _deadline(shape, ctx, None),
            "shape": msgspec.json.encode(shape).decode(), "rows": rows, "jobs": jobs,
            "here": [place for place, job in enumerate(jobs, 1) if job.task in known],
        }  # fmt: skip
        try:
            has_begun, ctx.closed, claimed = await store.transact(
                store.begin_run_in(document | describe_claimant(claimant)), single=True
            )
        except TransactionConflict:
            return False
        app._graph_steps.remember(run, claimed, {})
        if claimant is not None:
            claimant.claimed = claimed
    ctx.suspended = has_begun
    return bool(has_begun)


async def _end_at_once(store: Store, code: GraphCode, ctx: Context) -> Any:
    """End a run in one statement and return its result. None: something else is to be done."""
    shape = code.declaration.shape
    nodes = leaves(shape)
    if shape.timeout is not None or any(node.kind is GraphKind.MAP for node in nodes):
        return None
    document = {
        "run": ctx.id, "token": ctx.token, "shape": msgspec.json.encode(shape).decode(),
        "end": shape.end, "leaves": [shape.seq(node.name) for node in nodes],
    }  # fmt: skip
    try:
        texts = await store.transact(store.end_run_in(document), single=True)
    except TransactionConflict:
        return None
    if texts is None:
        return None
    outputs = {node.name: texts.get(shape.seq(node.name)) for node in nodes}
    return {
        name: None if text is None else msgspec.json.decode(text) for name, text in outputs.items()
    }


def _deadline(shape: Shape, ctx: Context, began_at: datetime | None) -> datetime | None:
    """When a run times out: its limit counts from its first start, or the first after a retry."""
    if shape.timeout is None:
        return None
    this_start = ctx.job.claimed_at + timedelta(microseconds=ctx.started_us)
    return (began_at or this_start) + timedelta(seconds=shape.timeout)


def _is_large(code: GraphCode) -> bool:
    """Whether an activation may keep the event loop busy: then it computes on a thread."""
    nodes = code.declaration.shape.nodes
    return len(nodes) > _SMALL or any(node.kind is GraphKind.MAP for node in nodes)


class RunStep:
    """One activation of a run's job."""

    def __init__(
        self,
        statements: GraphStatements,
        store: Store,
        code: GraphCode,
        ctx: Context,
        *,
        is_stopped: bool,
    ) -> None:
        self._statements = statements
        self._store = store
        self._code = code
        self._ctx = ctx
        self._trace = read_trace(ctx.job.trace)
        undone = read_undo_key(ctx.job.key)
        self._id = ctx.id if undone is None else undone
        self._undoes = undone is not None
        """The run's own job has ended: this one runs the compensations."""
        self._is_stopped = is_stopped
        self._run: GraphRun
        self._shape: Shape
        self._rows: dict[int, GraphRow]
        self._now: datetime
        self._deadline: datetime | None = None
        """When the run times out."""
        self._states: dict[str, StepState] = {}
        self._changes: dict[int, dict[str, Any]] = {}
        self._jobs: list[tuple[int, int, NewJob]] = []
        self._children: list[tuple[int, int, NewJob]] = []
        self._again: timedelta | None = None
        """When to look again, if nothing wakes the run before."""

    @property
    def run_id(self) -> int:
        return self._id

    def perform(self) -> Statements:
        statements = self._statements
        yield from statements.lock_briefly(self._id)
        if not (yield from statements.is_held(self._ctx.id, self._ctx.token)):
            raise ClaimLost(self._ctx.id, self._ctx.token)
        if self._undoes and not (yield from statements.has_ended(self._id)):
            return _Ended()  # It was retried meanwhile.
        yield from self._load()
        yield from self._follow_jobs()
        stop = self._rows.get(0)
        if stop is None and self._undoes:
            stop = yield from self._stop(CANCEL, self._shape.graph, None, None)
        elif stop is None:
            stop = yield from self._go_on()
            if isinstance(stop, _Ended):
                return stop
        if stop is None or stop.kind != FINISH:
            yield from self._register_compensations()
        if stop is not None:
            answer = yield from self._wind_down(stop)
            if answer is not None:
                return answer
        return (yield from self._suspend())

    def _load(self) -> Statements:
        statements = self._statements
        [run] = (yield from statements.runs([self._id])).values()
        if run.shape is None:
            run = run._replace(shape=self._code.declaration.shape)
            yield from statements.create(self._id, run.shape)
        self._run, self._shape = run, run.shape
        self._rows = yield from statements.rows(self._id, self._shape)
        self._now = yield from statements.now()
        if self._shape.timeout is not None and not self._undoes:
            [began_at] = yield from statements.began([self._id])
            self._deadline = _deadline(self._shape, self._ctx, began_at)
        self._states = {
            node.name: self._rows[self._shape.seq(node.name)].state for node in self._shape.nodes
        }

    def _follow_jobs(self) -> Statements:
        """Write down how jobs have ended that have not done so themselves: those that failed, and
        children. Returns the jobs that have not ended."""
        jobs: list[StepJob] = yield from self._statements.jobs(self._id)
        changes: list[dict[str, Any]] = []
        for job in jobs:
            if job.ended:
                state = StepState.COMPLETED if job.completed else StepState.FAILED
                changes.append(
                    change(
                        self._id, job.seq, state, output=job.result, finished_at=self._now,
                        attempt=job.attempt,
                        code=None if job.completed else job.code,
                        error=None if job.completed else job.error,
                    )
                )  # fmt: skip
                if job.seq in self._rows:
                    row = self._rows[job.seq]
                    self._rows[job.seq] = row._replace(
                        state=state, code=job.code, error=job.error, finished_at=self._now
                    )
                    if job.seq > 0:
                        self._states[row.name] = state
        yield from self._statements.write(changes)
        return [job for job in jobs if not job.ended]

    # Going on

    def _go_on(self) -> Statements:
        """Start what is ready. Return how the run has ended, or why it stops, or None."""
        if self._deadline is not None and self._now >= self._deadline:
            return (yield from self._stop(FAILURE, self._shape.graph, _TIMED_OUT, None))
        yield from self._end_maps()
        yield from self._end_waits()
        blocked: set[str] = set()
        while True:
            found = progress(self._shape, self._states)
            for node in found.skipped:
                self._end(node, StepState.SKIPPED)
            ready = [node for node in found.ready if node.name not in blocked]
            if found.failed is not None or not ready:
                break
            for node in ready:
                if not (yield from self._start(node)):
                    blocked.add(node.name)
        yield from self._flush()
        if found.failed is not None:
            name = found.failed.name
            code, error = yield from self._error_of(name)
            return (yield from self._stop(FAILURE, name, code, error))
        if found.done:
            return _Ended((yield from self._result()))
        return None

    def _running_maps(self) -> list[Node]:
        return [
            node
            for node in self._shape.nodes
            if node.kind is GraphKind.MAP and self._states[node.name] is StepState.RUNNING
        ]

    def _end_maps(self) -> Statements:
        maps = self._running_maps()
        for name, items in (yield from self._statements.items(self._id, self._shape, maps)).items():
            node = self._shape[name]
            if items.failed and not node.optional:
                self._end(
                    node, StepState.FAILED, code=items.code, error=f"{items.name}: {items.error}"
                )
            elif not items.unfinished:
                self._end(node, StepState.COMPLETED)
            else:
                seq = self._shape.seq(name)
                self._change(seq, StepState.RUNNING, pending=items.unfinished)

    def _end_waits(self) -> Statements:
        """End sleeps and signals that have waited long enough, or for what is there now."""
        waiting = [
            node for node in self._shape.nodes if self._states[node.name] is StepState.WAITING
        ]
        if any(node.kind is GraphKind.SIGNAL for node in waiting):
            yield from self._take_signals(
                [node for node in waiting if node.kind is GraphKind.SIGNAL]
            )
        for node in waiting:
            row = self._rows[self._shape.seq(node.name)]
            if self._states[node.name] is not StepState.WAITING or not row.is_due:
                continue
            if node.kind is GraphKind.SLEEP:
                self._end(node, StepState.COMPLETED)
            elif node.kind is GraphKind.SIGNAL:
                self._time_out(node)

    def _take_signals(self, nodes: Sequence[Node]) -> Statements:
        taken: dict[int, int] = {}
        arrived = yield from self._statements.signals(self._id)
        for node in nodes:
            signal = next((one for one in arrived if one.name == node.name), None)
            if signal is not None:
                taken[signal.id] = self._shape.seq(node.name)
                self._end(node, StepState.COMPLETED, output=signal.data)
        yield from self._statements.take(taken)

    def _time_out(self, node: Node) -> None:
        if node.default is msgspec.UNSET:
            self._end(
                node,
                StepState.FAILED,
                code=_SIGNAL_TIMEOUT,
                error=f"The signal {node.name!r} did not arrive in time.",
            )
        else:
            self._end(node, StepState.COMPLETED, output=msgspec.json.encode(node.default).decode())

    def _start(self, node: Node) -> Statements:
        """Start a step that waits for nothing more. False: it has to wait for its code."""
        if node.kind is GraphKind.STEP:
            # Its own job checks its condition.
            self._enqueue(self._jobs, node, step_job(self._shape, self._id, node, self._trace))
            return True
        try:
            inputs = yield from self._inputs(node)
            if inputs is None:
                return False
            if node.conditional and not inputs.holds(self._code.steps[node.name]):
                self._end(node, StepState.SKIPPED)
                return True
        except Exception as error:  # noqa: BLE001 -- A condition may raise anything.
            self._end(
                node,
                StepState.FAILED,
                code=code_of_error(error),
                error=f"its condition failed: {describe_exception(error)}",
            )
            return True
        match node.kind:
            case GraphKind.SLEEP:
                self._wait(node)
            case GraphKind.SIGNAL:
                self._wait(node)
                yield from self._take_signals([node])
            case GraphKind.CHILD:
                seq = self._shape.seq(node.name)
                args = inputs.write_object(self._code.steps[node.name].parameters)
                job = new_job(
                    str(node.flow), self._id, seq, node.job, args, flow=True, trace=self._trace
                )
                self._enqueue(self._children, node, job, StepState.WAITING)
            case _:
                yield from self._start_map(node, inputs)
        return True

    def _inputs(self, node: Node) -> Statements:
        """What the step can take; None if this process does not have its code."""
        step = self._code.steps.get(node.name)
        if step is None or (node.conditional and step.when is None):
            self._change(
                self._shape.seq(node.name),
                StepState.PENDING,
                code=_NO_CODE,
                error=f"The code of graph {self._shape.graph!r} has no step {node.name!r}. "
                "Deploy it again, or cancel the run.",
            )
            self._again = _LOOK_FOR_CODE
            return None
        names = [one.name for one in (*step.parameters, *step.condition)]
        if node.over is not None:
            names.append(node.over)
        outputs = yield from self._statements.outputs(ranges(self._run, self._shape, names))
        return Inputs(self._code, self._run, outputs)

    def _wait(self, node: Node) -> None:
        until = None if node.seconds is None else self._now + timedelta(seconds=node.seconds)
        self._states[node.name] = StepState.WAITING
        self._change(
            self._shape.seq(node.name), StepState.WAITING, until=until, started_at=self._now
        )

    def _enqueue(
        self,
        jobs: list[tuple[int, int, NewJob]],
        node: Node,
        job: NewJob,
        state: StepState = StepState.RUNNING,
    ) -> None:
        jobs.append((self._id, self._shape.seq(node.name), job))
        self._states[node.name] = state

    def _start_map(self, node: Node, inputs: Inputs) -> Statements:
        """Start a job for each item that has not completed before the run was retried."""
        text = inputs.text(str(node.over))
        items = [] if text is None else msgspec.json.decode(text)
        if not isinstance(items, list) or len(items) >= MAX_ITEMS:
            self._end(
                node,
                StepState.FAILED,
                code="not_mappable",
                error=f"{node.over!r} must be a list of fewer than {MAX_ITEMS:,} items.",
            )
            return
        first = self._shape.first_item(node.name)
        completed = yield from self._statements.completed_items(self._id, self._shape, node)
        left = [(place, item) for place, item in enumerate(items) if first + place not in completed]
        if not left:
            self._end(node, StepState.COMPLETED)
            return
        task = f"{self._shape.graph}.{node.name}"
        jobs = [
            new_job(
                task,
                self._id,
                first + place,
                node.job,
                msgspec.json.encode({"item": item}),
                trace=self._trace,
            )
            for place, item in left
        ]
        enqueued = yield from self._store.enqueue_in(jobs)
        yield from self._statements.add(
            [
                {
                    "run": self._id, "seq": first + place, "kind": ITEM,
                    "name": f"{node.name}[{place}]", "state": StepState.RUNNING,
                    "job": made.job_id,
                }
                for (place, _), made in zip(left, enqueued, strict=True)
            ]
        )  # fmt: skip
        self._states[node.name] = StepState.RUNNING
        self._change(
            self._shape.seq(node.name),
            StepState.RUNNING,
            pending=len(left),
            started_at=self._now,
        )

    def _error_of(self, name: str) -> Statements:
        seq = self._shape.seq(name)
        if seq in self._changes or self._rows[seq].code is None:
            rows = yield from self._statements.rows(self._id, self._shape)
            return rows[seq].code, rows[seq].error
        return self._rows[seq].code, self._rows[seq].error

    def _result(self) -> Statements:
        """The outputs of the steps that nothing waits for."""
        nodes = leaves(self._shape)
        names = [node.name for node in nodes]
        outputs = yield from self._statements.outputs(ranges(self._run, self._shape, names))
        inputs = Inputs(self._code, self._run, outputs)
        texts = {name: inputs.text(name) for name in names}
        yield from self._end_run()
        return {
            name: None if text is None else msgspec.json.decode(text)
            for name, text in texts.items()
        }

    def _end_run(self) -> Statements:
        """Nothing is left to do, nor to undo."""
        rows = [
            change(self._id, seq, StepState.SKIPPED, finished_at=self._now)
            for seq, row in self._rows.items()
            if seq < 0 and row.state is StepState.REGISTERED
        ]
        rows.append(change(self._id, self._shape.end, StepState.COMPLETED, finished_at=self._now))
        yield from self._statements.write(rows)

    # Writing

    def _end(
        self,
        node: Node,
        state: StepState,
        *,
        output: str | None = None,
        code: str | None = None,
        error: str | None = None,
    ) -> None:
        self._states[node.name] = state
        self._change(
            self._shape.seq(node.name),
            state,
            output=output,
            code=code,
            error=error,
            finished_at=self._now,
        )

    def _change(self, seq: int, state: StepState, **values: Any) -> None:
        self._changes[seq] = change(self._id, seq, state, **values)

    def _flush(self) -> Statements:
        """Write what has changed, and count anew what the others wait for."""
        for node in self._shape.nodes:
            seq = self._shape.seq(node.name)
            if self._states[node.name] is StepState.PENDING:
                pending = count_pending(self._shape, node, self._states)
                if seq in self._changes:
                    self._changes[seq]["pending"] = pending
                elif pending != self._rows[seq].pending:
                    self._change(seq, StepState.PENDING, pending=pending)
        ends = leaves(self._shape)
        left = sum(not is_done(node, self._states[node.name]) for node in ends)
        if left != self._rows[self._shape.end].pending:
            self._change(self._shape.end, StepState.PENDING, pending=left)
        yield from self._statements.write(list(self._changes.values()))
        yield from start_jobs(self._statements, self._store, self._jobs)
        yield from start_jobs(
            self._statements, self._store, self._children, state=StepState.WAITING
        )
        self._jobs, self._children = [], []

    def _register_compensations(self) -> Statements:
        """Add the rows of what undoes the steps that have ended without a job of their own to add
        them, such as maps and children. Without one, nobody would undo a run whose job is cancelled
        directly."""
        yield from self._statements.add(
            [
                compensation_row(self._id, self._shape, node)
                for node in self._shape.nodes
                if node.undo is not None
                and self._states[node.name] is StepState.COMPLETED
                and -self._shape.seq(node.name) not in self._rows
            ]
        )

    # Ending without success

    def _stop(self, kind: str, name: str, code: str | None, error: str | None) -> Statements:
        stop = {"run": self._id, "kind": kind, "name": name, "code": code, "error": error}
        yield from self._statements.stop([stop])
        return GraphRow(0, kind, name, StepState.WAITING, None, False, None, code, error, None)

    def _wind_down(self, stop: GraphRow) -> Statements:
        """Cancel what runs, undo what was done, and end the run. None: it has to wait for that."""
        # Read anew: what has ended by this read is also written down.
        left: list[StepJob] = yield from self._follow_jobs()
        steps = [job for job in left if job.seq > 0]
        if steps:
            if not self._is_stopped:
                return _Stop([job.job_id for job in steps])
            self._again = _LOOK_AGAIN
        yield from self._statements.write(
            [
                change(self._id, self._shape.seq(node.name), StepState.PENDING)
                for node in self._shape.nodes
                if self._states[node.name] is StepState.WAITING and node.kind is not GraphKind.CHILD
            ]
        )
        if steps:
            return None
        yield from self._end_stopped_maps()
        if stop.kind != FINISH and not (yield from self._compensate()):
            return None
        return (yield from self._outcome(stop))

    def _end_stopped_maps(self) -> Statements:
        """The items of maps have ended, most of them because the run stops."""
        running = self._running_maps()
        found = yield from self._statements.items(self._id, self._shape, running)
        for name, items in found.items():
            has_completed = not items.failed and not items.unfinished
            self._states[name] = StepState.COMPLETED if has_completed else StepState.PENDING
        yield from self._statements.write(
            [
                change(
                    self._id, self._shape.seq(node.name), self._states[node.name],
                    finished_at=self._now
                    if self._states[node.name] is StepState.COMPLETED
                    else None,
                )
                for node in running
            ]
        )  # fmt: skip

    def _outcome(self, stop: GraphRow) -> Statements:
        outputs = yield from self._statements.outputs([(self._id, 0, 0)])
        text = outputs[self._id, 0].text
        yield from self._statements.write(
            [
                change(
                    self._id, 0, StepState.COMPLETED, output=text, code=stop.code, error=stop.error,
                    finished_at=self._now,
                )
            ]
        )  # fmt: skip
        if stop.kind == FINISH:
            yield from self._end_run()
            return _Ended(None if text is None else msgspec.json.decode(text))
        if self._undoes:
            return _Ended()
        if stop.kind == CANCEL:
            return _Ended(error=Cancel(stop.error or "the run was cancelled"))
        if stop.code == _TIMED_OUT and stop.name == self._shape.graph:
            return _Ended(error=FlowTimeout(self._id, self._shape.timeout or 0))
        seq = self._shape.seq(stop.name) if stop.name in self._shape else 0
        return _Ended(error=StepFailed(stop.name, seq=seq, error=stop.error, error_code=stop.code))

    def _compensate(self) -> Statements:
        """Run the compensations one after another, the last completed step first. True: all ran."""
        self._rows = yield from self._statements.rows(self._id, self._shape)
        done = [
            (row.name, row.finished_at)
            for seq, row in self._rows.items()
            if 0 < seq < self._shape.end and row.state is StepState.COMPLETED
        ]
        nodes = compensations(self._shape, done)
        missing = [node for node in nodes if -self._shape.seq(node.name) not in self._rows]
        yield from self._statements.add(
            [compensation_row(self._id, self._shape, node) for node in missing]
        )
        states = {row.name: row.state for seq, row in self._rows.items() if seq < 0}
        if StepState.RUNNING in states.values():
            return False
        # Skipped: the steps had ended, and it was cancelled before its job had.
        undone = {StepState.COMPLETED, StepState.FAILED}
        for node in reversed(nodes):
            if states.get(str(node.undo)) not in undone:
                task, seq = f"{self._shape.graph}.{node.undo}", -self._shape.seq(node.name)
                job = new_job(task, self._id, seq, node.undo_job, trace=self._trace)
                yield from start_jobs(self._statements, self._store, [(self._id, seq, job)])
                return False
        return True

    # Waiting

    def _suspend(self) -> Statements:
        deadline = None if 0 in self._rows else self._deadline
        if self._undoes:
            # Nobody wakes this job.
            self._again = _LOOK_OFTEN
        if self._again is not None:
            again = self._now + self._again
            deadline = again if deadline is None else min(again, deadline)
        answer = yield from self._statements.suspend_one(
            Suspension(
                run=self._ctx.id,
                token=self._ctx.token,
                started=self._ctx.started_us,
                finished=self._ctx.elapsed_us,
                waits=None,
                deadline=deadline,
            ),
            is_locked=not self._undoes,
        )
        if answer == "lost":
            raise ClaimLost(self._ctx.id, self._ctx.token)
        return answer
