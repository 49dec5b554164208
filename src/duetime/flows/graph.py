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
from duetime.domain.jobs.job import ClaimedJob, NewJob
from duetime.domain.jobs.outcome import Cancel, Completed, Discard, Outcome
from duetime.engine.batching import Batcher, process_alone_if_refused
from duetime.engine.context import Claimant, Context
from duetime.engine.executor import is_cancelled, write_json
from duetime.errors import InvalidInput, TransactionConflict, TransientError
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


class _Handed(NamedTuple):
    """The run of a step, and the outputs that are known of it."""

    run: GraphRun
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
        self._handed: OrderedDict[tuple[int, int], _Handed] = OrderedDict()
        """Steps that were claimed for this process as they were released, by job and token."""

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
        handed = self._handed.pop((ctx.id, ctx.token), None)
        if handed is not None and _has_all(handed, names):
            return handed.run, where[1], handed.outputs
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
        record = partial(
            record_until_accepted,
            ctx,
            lambda: self._submit(ended),
            run_id=ended.run.id,
            step=ctx.job.task.rpartition(".")[2],
        )
        try:
            await record()
        except asyncio.CancelledError as error:
            if not (is_cancelled(error) and ctx.cancel_requested):
                raise
            # The step has happened: it has to be recorded, so that it is undone.
            if not ctx.committed:
                await record()

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
        answers: list[_Answer]
        if store.runs_graphs and not waits and all(map(_is_counted_only, ended)):
            answers = await self._end_at_once(store, statements, ended)
        else:
            answers = await store.transact(
                _finish_and_release(statements, store, ended, waits=waits)
            )
        for one, answer in zip(ended, answers, strict=True):
            if answer is True:
                # Not where it was submitted: that may be cancelled before the answer is there.
                one.ctx.committed = True
        return answers

    async def _end_at_once(
        self, store: Store, statements: GraphStatements, ended: Sequence[EndedStep]
    ) -> list[_Answer]:
        """In one statement, with which this worker also claims what it releases."""
        order = sorted(range(len(ended)), key=lambda place: ended[place].ctx.token)
        ended_in_order = [ended[place] for place in order]
        async with ended[0].ctx.hand_over(len(ended)) as claimant:
            finished = [one.ctx._finished(None) for one in ended_in_order]
            document = _describe_ends(statements, ended_in_order, claimant)
            try:
                ends, jobs = await store.transact(
                    store.end_steps_in(finished, document), single=True
                )
            except TransientError:
                # It may be committed: then a second completion is no surprise.
                for one in ended:
                    one.ctx.completed = True
                raise
            answers: dict[int, _Answer] = {}
            for place, one, (is_ours, is_closed) in zip(order, ended_in_order, ends, strict=True):
                one.ctx.closed = is_closed
                answers[place] = "busy" if is_ours is None else is_ours
            self._remember(jobs, [one for place, one in enumerate(ended) if answers[place] is True])
            if claimant is not None:
                claimant.claimed = jobs
        return [answers[place] for place in range(len(ended))]

    def _remember(self, jobs: Sequence[ClaimedJob], ended: Sequence[EndedStep]) -> None:
        outputs: dict[int, dict[tuple[int, int], Output]] = {}
        for one in ended:
            output = Output(one.state, one.output, one.ctx.id)
            outputs.setdefault(one.run.id, {})[one.run.id, one.seq] = output
        for run in {one.run.id: one.run for one in ended}.values():
            self.remember(run, jobs, outputs[run.id])

    def remember(self, run: GraphRun, jobs: Sequence[ClaimedJob], outputs: Outputs) -> None:
        """Keep what is known of steps that are about to run here: they need not read it."""
        for job in jobs:
            where = read_step_key(job.key)
            if where is not None and where[0] == run.id:
                self._handed[job.id, job.token] = _Handed(run, outputs)
        while len(self._handed) > _KEPT_RUNS:
            self._handed.popitem(last=False)

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


def _has_all(handed: _Handed, names: tuple[str, ...]) -> bool:
    shape = handed.run.shape
    return shape is not None and all(
        first == last and (run, first) in handed.outputs
        for run, first, last in ranges(handed.run, shape, names)
    )


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


def _is_counted_only(one: EndedStep) -> bool:
    """Whether what waits for a step starts as soon as it waits for nothing more. Else it may be
    skipped, which depends on the states of other steps."""
    shape = one.run.shape
    if shape is None:
        return False
    return not any(
        following is not None and following.kind is GraphKind.STEP and shape.skipped_with(following)
        for _, following in _what_waits(shape, one.seq)
    )


def _what_waits(shape: Shape, seq: int) -> list[tuple[int, Node | None]]:
    """The rows that wait for a step, with their steps: none for the end of the run."""
    node = shape.node(seq)
    if seq < 0 or node is None:
        return []
    if is_item(seq):
        return [(shape.seq(node.name), node)]
    following = shape.next(node.name)
    if not following:
        return [(shape.end, None)]
    return [(shape.seq(name), shape[name]) for name in following]


def _describe_ends(
    statements: GraphStatements, ended: Sequence[EndedStep], claimant: Claimant | None
) -> dict[str, Any]:
    """Say what ended, and what follows: see `Store.end_steps_in`."""
    ends: list[dict[str, Any]] = []
    counts: list[dict[str, Any]] = []
    for place, one in enumerate(ended):
        shape = one.run.shape
        assert shape is not None
        waiting = _what_waits(shape, one.seq)
        row = _record(one)
        ends.append(
            {
                "run": one.run.id, "seq": one.seq, "state": one.state,
                "output": statements.json(one.output), "attempt": row["attempt"],
                "started_at": row["started_at"], "finished_at": row["finished_at"],
                "wake": not waiting,
            }
        )  # fmt: skip
        for seq, node in waiting:
            count: dict[str, Any] = {"place": place, "run": one.run.id, "seq": seq, "by": 1}
            if node is not None and node.kind is GraphKind.STEP and not is_item(one.seq):
                job = step_job(shape, one.run.id, node, read_trace(one.ctx.job.trace))
                count["job"] = job
                count["here"] = claimant is not None and job.task in claimant.tasks
            counts.append(count)
    document: dict[str, Any] = {
        "ends": ends,
        "counts": counts,
        "stops": [
            stop | {"place": place, "output": statements.json(stop["output"])}
            for place, one in enumerate(ended)
            for stop in _stops([one])
        ],
        "undos": [
            undo | {"place": place} for place, one in enumerate(ended) for undo in _undos([one])
        ],
    }
    return document | describe_claimant(claimant)


def describe_claimant(claimant: Claimant | None) -> dict[str, Any]:
    """Who claims what a statement makes: see `_claim_made`."""
    if claimant is None:
        return {}
    return {"worker": claimant.worker_id, "queues": claimant.queues, "most": claimant.most}


def _write_and_release(
    statements: GraphStatements, store: Store, ended: Sequence[EndedStep]
) -> Statements:
    yield from statements.stop(_stops(ended))
    yield from statements.add(_undos(ended))
    runs = {one.run.id: one.run for one in ended}
    traces = {one.run.id: read_trace(one.ctx.job.trace) for one in ended}
    release = Release(statements, store, runs, traces)
    for one in ended:
        release.step_ended(one.run.id, one.seq)
    yield from release.perform([_record(one) for one in ended])


def _stops(ended: Sequence[EndedStep]) -> list[dict[str, Any]]:
    return [
        {
            "run": one.run.id, "kind": "finish", "name": one.ctx.job.task,
            "output": write_json(one.finish.result, what="result"),
        }
        for one in ended
        if one.finish is not None
    ]  # fmt: skip


def _undos(ended: Sequence[EndedStep]) -> list[dict[str, Any]]:
    return [
        compensation_row(one.run.id, shape, node)
        for one in ended
        if (shape := one.run.shape) is not None
        and (node := shape.node(one.seq)) is not None
        and node.undo is not None
        and not is_item(one.seq)
        and one.state is StepState.COMPLETED
    ]


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
