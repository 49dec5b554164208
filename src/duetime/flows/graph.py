"""How a graph runs: its steps are jobs, and the run's own job does what no step can.

A step's end, its output and the release of what waits for it are one transaction. What needs more
than counting (sleeps, signals, maps, children, failures, the end) is left to the run's job. It is
woken for that, reads all rows under the lock of the run, and is suspended again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import msgspec

from duetime.domain.flows.flow import StepState, read_step_key, step_key
from duetime.domain.flows.graph import (
    Finish,
    GraphKind,
    JobOptions,
    Node,
    Shape,
    is_item,
    is_skipped,
)
from duetime.domain.jobs.job import NewJob
from duetime.domain.jobs.outcome import Cancel, Completed, Discard, Outcome
from duetime.engine.batching import Batcher, process_alone_if_refused
from duetime.engine.context import Context
from duetime.engine.executor import write_json
from duetime.errors import InvalidInput, TransactionConflict
from duetime.flows.graph_code import GraphCode, Inputs, Outputs, ranges
from duetime.flows.recorder import FIRST_BUSY_SECONDS, MAX_BUSY_SECONDS, record_until_accepted
from duetime.storage.flows.graphs import GraphRun, GraphStatements, Output, change, compensation_row
from duetime.storage.store import Dialect, Statements, Store
from duetime.telemetry.traces import Trace, read_trace

if TYPE_CHECKING:
    from duetime.app import Duetime

log = logging.getLogger("duetime.flows")

_KEPT_RUNS = 1_000

_Answer = bool | Exception | Literal["busy"]
"""Whether the end of a step was accepted, else its claim is gone. `busy`: another transaction has
locked its run."""


class _Wanted(NamedTuple):
    """A step that is about to run, and the names of what it takes."""

    run: int
    seq: int
    names: tuple[str, ...]


class _Loaded(NamedTuple):
    run: GraphRun | None
    own: Output | None
    """The row of the step itself."""
    outputs: Outputs


class EndedStep(NamedTuple):
    """A step that has ended, and what it leaves behind: as one, or not at all."""

    ctx: Context
    run: GraphRun
    seq: int
    state: StepState
    output: str | None = None
    finish: Finish | None = None


class GraphSteps:
    """Runs the steps of an app's graphs. What many of them read or write is one call."""

    def __init__(self, app: Duetime) -> None:
        self._app = app
        self._loads: Batcher[_Wanted, _Loaded] = Batcher(self._load_many)
        self._records: Batcher[EndedStep, _Answer] = Batcher(
            lambda ended: process_alone_if_refused(self._write, ended), wait_on_cancel=True
        )
        self._locked_out: Batcher[EndedStep, _Answer] = Batcher(
            self._write_in_turn, wait_on_cancel=True
        )
        """Steps of runs that another transaction had locked."""
        self._runs: WeakKeyDictionary[Store, OrderedDict[int, GraphRun]] = WeakKeyDictionary()
        """The runs whose steps ran here last: what is kept of a run never changes."""

    async def run(self, code: GraphCode, name: str, ctx: Context, item: Any) -> Any:
        """Run a step, an item of a map, or a compensation; record how it ended."""
        step = code.steps[name]
        run, seq, outputs = await self._load(ctx, _names(step.parameters, step.condition))
        inputs = Inputs(code, run, outputs)
        if seq > 0 and not is_item(seq) and not inputs.holds(step):
            await self._record(EndedStep(ctx, run, seq, StepState.SKIPPED))
            return None
        text = None if step.item is None else msgspec.json.encode(item).decode()
        kwargs = inputs.decode(step, item=text)

        def finish_with(dialect: Dialect, result: Any) -> Statements:
            ended = _ended(name, ctx, run, seq, result)
            statements = GraphStatements(dialect)
            yield from statements.lock([run.id])
            yield from _write_and_release(statements, self._app._unopened(), [ended])

        ctx.finish_with = finish_with
        value = await step.call(kwargs, ctx)
        if ctx.committed or ctx.completed:
            return value
        if isinstance(value, Completed):
            value = value.result
        if isinstance(value, Outcome) and not isinstance(value, Finish):
            return value
        await self._record(_ended(name, ctx, run, seq, value))
        return None

    async def _load(self, ctx: Context, names: tuple[str, ...]) -> tuple[GraphRun, int, Outputs]:
        """Return the run of a step, the step's number, and the values of these names."""
        where = read_step_key(ctx.job.key)
        if where is None:
            raise Discard(f"{ctx.job.task!r} is a step of a graph: only a run can start it.")
        run, own, outputs = await self._loads.submit(_Wanted(*where, names))
        if run is None or own is None or own.state is not StepState.RUNNING or own.job_id != ctx.id:
            raise Cancel(f"run {where[0]} does not wait for this job")
        return run, where[1], outputs

    async def _load_many(self, wanted: list[_Wanted]) -> Sequence[_Loaded]:
        store = await self._app.store()
        statements = GraphStatements(store.dialect)
        runs = self._runs.setdefault(store, OrderedDict())
        if missing := {one.run for one in wanted} - runs.keys():
            found = await store.transact(statements.runs(sorted(missing)), reads=True, single=True)
            runs.update(found)
        rows: set[tuple[int, int, int]] = set()
        for one in wanted:
            if (run := runs.get(one.run)) is not None and run.shape is not None:
                runs.move_to_end(one.run)
                rows.add((one.run, one.seq, one.seq))
                rows.update(ranges(run, run.shape, one.names))
        outputs: Outputs = {}
        if rows:
            outputs = await store.transact(
                statements.outputs(sorted(rows)), reads=True, single=True
            )
        answers = [
            _Loaded(runs.get(one.run), outputs.get((one.run, one.seq)), outputs) for one in wanted
        ]
        while len(runs) > _KEPT_RUNS:
            runs.popitem(last=False)
        return answers

    async def _record(self, ended: EndedStep) -> None:
        """Record how a step ended, with the completion of its job."""
        ctx = ended.ctx
        await record_until_accepted(
            ctx,
            lambda: self._submit(ended),
            run_id=ended.run.id,
            step=ctx.job.task.rpartition(".")[2],
        )
        ctx.committed = True

    async def _submit(self, ended: EndedStep) -> bool | Exception:
        wait = FIRST_BUSY_SECONDS
        answer = await self._records.submit(ended)
        while answer == "busy":
            answer = await self._locked_out.submit(ended)
            if answer == "busy":
                await asyncio.sleep(wait)
                wait = min(2 * wait, MAX_BUSY_SECONDS)
        return answer

    async def _write(self, ended: Sequence[EndedStep], *, waits: bool = False) -> list[_Answer]:
        store = await self._app.store()
        statements = GraphStatements(store.dialect)
        answers: list[_Answer] = await store.transact(
            _finish_and_release(statements, store, ended, waits=waits)
        )
        return answers

    async def _write_in_turn(self, ended: Sequence[EndedStep]) -> Sequence[_Answer]:
        """Wait a moment for each run. No run waits for another one that stays locked for longer,
        and no more than one connection does."""
        answers: dict[int, _Answer] = {}
        for run in {one.run.id for one in ended}:
            own = [one for one in ended if one.run.id == run]
            try:
                found = await process_alone_if_refused(partial(self._write, waits=True), own)
            except TransactionConflict:
                found = ["busy"] * len(own)
            answers |= {id(one): answer for one, answer in zip(own, found, strict=True)}
        return [answers[id(one)] for one in ended]


def _names(*parameters: Iterable[Any]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(one.name for group in parameters for one in group))


def _ended(name: str, ctx: Context, run: GraphRun, seq: int, value: Any) -> EndedStep:
    finish = value if isinstance(value, Finish) else None
    try:
        output = None if finish or value is None else write_json(value, what=f"output of {name!r}")
        if finish is not None:
            write_json(finish.result, what=f"result of {name!r}")
    except InvalidInput as error:
        # It would be no better the next time.
        raise Discard(str(error)) from error
    return EndedStep(ctx, run, seq, StepState.COMPLETED, output, finish)


# One transaction


def _finish_and_release(
    statements: GraphStatements, store: Store, ended: Sequence[EndedStep], *, waits: bool
) -> Statements:
    """Complete the jobs of steps, each fenced by itself, and release what waits for them. Return an
    `_Answer` for each: `busy` if another transaction has locked its run. With `waits`, all are of
    one run, whose lock is waited for."""
    if waits:
        yield from statements.lock_briefly(ended[0].run.id)
    accepted: list[bool | None] = yield from store.finish_steps_in(
        [one.ctx._finished(None) for one in ended], [one.run.id for one in ended]
    )
    ours = [one for one, is_ours in zip(ended, accepted, strict=True) if is_ours]
    for one in ours:
        # If the answer to the commit is lost, a second completion is no surprise.
        one.ctx.completed = True
    if ours:
        yield from _write_and_release(statements, store, ours)
    return ["busy" if is_ours is None else is_ours for is_ours in accepted]


def _write_and_release(
    statements: GraphStatements, store: Store, ended: Sequence[EndedStep]
) -> Statements:
    yield from statements.stop(
        [
            {
                "run": one.run.id, "kind": "finish", "name": one.ctx.job.task,
                "output": write_json(one.finish.result, what="result"),
            }
            for one in ended
            if one.finish is not None
        ]
    )  # fmt: skip
    yield from statements.add(
        [
            compensation_row(one.run.id, shape, node)
            for one in ended
            if (shape := one.run.shape) is not None
            and (node := shape.node(one.seq)) is not None
            and node.undo is not None
            and not is_item(one.seq)
            and one.state is StepState.COMPLETED
        ]
    )
    runs = {one.run.id: one.run for one in ended}
    traces = {one.run.id: read_trace(one.ctx.job.trace) for one in ended}
    release = Release(statements, store, runs, traces)
    for one in ended:
        release.step_ended(one.run.id, one.seq)
    yield from release.perform([_record(one) for one in ended])


def _record(one: EndedStep) -> dict[str, Any]:
    ctx = one.ctx

    def moment(us: int) -> Any:
        return ctx.job.claimed_at + timedelta(microseconds=us)

    return change(
        one.run.id,
        one.seq,
        one.state,
        output=one.output,
        attempt=ctx.job.attempt,
        started_at=moment(ctx.started_us),
        finished_at=moment(ctx.elapsed_us),
    )


class Release:
    """Counts down what waits for steps that ended, and starts what waits for nothing more."""

    def __init__(
        self,
        statements: GraphStatements,
        store: Store,
        runs: Mapping[int, GraphRun],
        traces: Mapping[int, Trace | None],
    ) -> None:
        self._statements = statements
        self._store = store
        self._runs = runs
        self._traces = traces
        """The enqueue that started each run."""
        self._counts: Counter[tuple[int, int]] = Counter()
        self._jobs: list[tuple[int, int, NewJob]] = []
        self._wake: set[int] = set()

    def step_ended(self, run: int, seq: int) -> None:
        shape = self._shape(run)
        node = shape.node(seq)
        if seq < 0 or node is None:
            self._wake.add(run)
        elif is_item(seq):
            self._counts[run, shape.seq(node.name)] += 1
        else:
            following = shape.next(node.name)
            for name in following:
                self._counts[run, shape.seq(name)] += 1
            if not following:
                self._counts[run, shape.end] += 1

    def perform(self, changes: list[dict[str, Any]]) -> Statements:
        """Write these changes, and release what waits for the steps that have ended."""
        while self._counts or changes:
            counts, self._counts = self._counts, Counter()
            released = yield from self._statements.write_and_release(changes, counts)
            self._wake |= {one.run for one in released if one.stopping}
            reached = [one for one in released if not one.pending and not one.stopping]
            states = yield from self._states_that_matter(reached)
            ended: list[tuple[int, int, StepState]] = []
            undos: list[dict[str, Any]] = []
            for one in reached:
                shape = self._shape(one.run)
                node = shape.node(one.seq)
                if node is None:
                    self._wake.add(one.run)
                elif one.state is StepState.RUNNING and node.kind is GraphKind.MAP:
                    ended.append((one.run, one.seq, StepState.COMPLETED))
                    if node.undo is not None:
                        undos.append(compensation_row(one.run, shape, node))
                elif one.state is not StepState.PENDING:
                    continue
                elif is_skipped(shape, node, states.get(one.run, {})):
                    ended.append((one.run, one.seq, StepState.SKIPPED))
                elif node.kind is GraphKind.STEP:
                    job = step_job(shape, one.run, node, self._traces[one.run])
                    self._jobs.append((one.run, one.seq, job))
                else:
                    self._wake.add(one.run)
            changes = []
            if ended:
                now = yield from self._statements.now()
                changes = [change(run, seq, state, finished_at=now) for run, seq, state in ended]
                yield from self._statements.add(undos)
                for run, seq, _ in ended:
                    self.step_ended(run, seq)
        yield from start_jobs(self._statements, self._store, self._jobs)
        yield from self._statements.wake(self._wake)

    def _states_that_matter(self, reached: Sequence[Any]) -> Statements:
        """The states of steps whose skip may cause another one."""
        wanted: list[tuple[int, int, int]] = []
        for one in reached:
            shape = self._shape(one.run)
            node = shape.node(one.seq)
            if node is not None and one.state is StepState.PENDING:
                seqs = [shape.seq(name) for name in shape.skipped_with(node)]
                wanted += [(one.run, seq, seq) for seq in seqs]
        states: dict[int, dict[str, StepState]] = {}
        if wanted:
            found: Outputs = yield from self._statements.outputs(wanted)
            for (run, seq), output in found.items():
                node = self._shape(run).node(seq)
                assert node is not None
                states.setdefault(run, {})[node.name] = output.state
        return states

    def _shape(self, run: int) -> Shape:
        shape = self._runs[run].shape
        assert shape is not None
        return shape


def start_jobs(
    statements: GraphStatements,
    store: Store,
    jobs: Sequence[tuple[int, int, NewJob]],
    *,
    state: StepState = StepState.RUNNING,
) -> Statements:
    """Enqueue the jobs of steps, which are in this state from now on."""
    if jobs:
        enqueued = yield from store.enqueue_in([job for _, _, job in jobs])
        yield from statements.write(
            [
                change(run, seq, state, job=made.job_id)
                for (run, seq, _), made in zip(jobs, enqueued, strict=True)
            ]
        )


def step_job(shape: Shape, run: int, node: Node, trace: Trace | None) -> NewJob:
    return new_job(f"{shape.graph}.{node.name}", run, shape.seq(node.name), node.job, trace=trace)


def new_job(
    task: str,
    run: int,
    seq: int,
    options: JobOptions,
    args: bytes = b"{}",
    *,
    flow: bool = False,
    trace: Trace | None = None,
) -> NewJob:
    return NewJob(
        task=task,
        args=msgspec.Raw(args),
        queue=options.queue,
        priority=options.priority,
        key=step_key(run, seq),
        max_attempts=options.max_attempts,
        timeout=None if options.timeout is None else timedelta(seconds=options.timeout),
        flow=flow,
        trace=trace,
    )
