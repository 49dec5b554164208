"""What runs of graphs record and wait for, as statements without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, NamedTuple

import msgspec

from duetime.domain.flows.flow import StepState, SuspendAnswer, Suspension
from duetime.domain.flows.graph import (
    MAX_ITEMS,
    Node,
    Shape,
    count_pending,
    is_done,
    leaves,
    maps_to_resume,
    steps_to_repeat,
)
from duetime.domain.jobs.job import JobState
from duetime.domain.reasons import describe_error
from duetime.errors import IllegalTransition, InvalidInput
from duetime.storage.flows.runs import FlowStatements
from duetime.storage.store import Statements, in_parts, run_many

END = "end"
"""The kind of the row that every step leads to."""
ITEM = "item"
COMPENSATION = "compensation"
FAILURE, CANCEL, FINISH = "failure", "cancel", "finish"
"""Why a run stops."""


class GraphRun(NamedTuple):
    """A run, with the graph that it was started with."""

    id: int
    shape: Shape | None
    """None: its job has not run yet."""
    args: dict[str, msgspec.Raw]

    @classmethod
    def started(cls, run: int, shape: Shape, args: str) -> GraphRun:
        return cls(run, shape, _decode_args(args))


class GraphRow(NamedTuple):
    """A row of a run."""

    seq: int
    kind: str
    name: str
    state: StepState
    pending: int | None
    is_due: bool
    job_id: int | None
    code: str | None
    error: str | None
    finished_at: datetime | None


class Output(NamedTuple):
    """What a step has put out, as JSON."""

    state: StepState
    text: str | None
    job_id: int | None


class Items(NamedTuple):
    """How the items of a map stand."""

    total: int
    unfinished: int
    failed: int
    name: str | None
    """Of the first that failed; then its error."""
    code: str | None
    error: str | None


class StepJob(NamedTuple):
    """The job of a step that has not ended in its run."""

    seq: int
    job_id: int
    ended: bool
    completed: bool
    code: str | None
    error: str | None
    result: str | None
    finished_at: datetime | None
    attempt: int | None
    """The last; None: it never ran."""


class Arrived(NamedTuple):
    """A signal that has not been taken."""

    id: int
    name: str
    data: str | None


class Released(NamedTuple):
    """A row that waits for steps, after some of them have ended."""

    run: int
    seq: int
    pending: int
    state: StepState
    stopping: bool
    """The run stops: nothing starts any more."""


class Repeat(NamedTuple):
    """What a run that has ended does again."""

    reset: list[dict[str, Any]]
    """Rows that stand as if they had never run."""
    forgotten: list[dict[str, Any]]
    """Ranges of rows that are removed."""


class GraphStatements(FlowStatements):
    """Statements of graphs. `lock` the runs before anything is written."""

    def lock(self, runs: Iterable[int]) -> Statements:
        yield from self._dialect.run("flow_lock", sorted(set(runs)))

    def lock_briefly(self, run: int) -> Statements:
        """As `lock`; raise `TransactionConflict` if another transaction keeps the run locked."""
        yield from self._dialect.run("flow_lock_briefly", [run])

    def runs(self, runs: Sequence[int]) -> Statements:
        """Return `{id: GraphRun}`. Reads only."""
        rows = yield from self._dialect.run("graph_runs", list(runs))
        return {
            run: GraphRun(
                run,
                None if shape is None else _decode_shape(shape),
                _decode_args(args),
            )
            for run, shape, args in rows
        }

    def is_held(self, run: int, token: int) -> Statements:
        return bool((yield from self._dialect.run("graph_held", {"run": run, "token": token})))

    def create(self, run: int, shape: Shape) -> Statements:
        """Store the graph of a run, and add a row for each of its steps and for its end."""
        text = msgspec.json.encode(shape).decode()
        yield from self._dialect.run("graph_create", {"run": run, "shape": self.json(text)})
        yield from self.add(new_rows(run, shape))

    def add(self, rows: Sequence[Mapping[str, Any]]) -> Statements:
        if rows:
            yield from run_many(self._dialect, "graph_add", self._with_json(rows))

    def rows(self, run: int, shape: Shape) -> Statements:
        """Return the rows of a run by their numbers, without the items of maps."""
        rows = yield from self._dialect.run("graph_rows", {"run": run, "last": shape.end})
        moment = self._dialect.moment
        return {
            seq: GraphRow(
                seq, kind, name, StepState(state), pending, bool(is_due), job_id, code, error,
                None if finished_at is None else moment(finished_at),
            )
            for seq, kind, name, state, pending, is_due, job_id, code, error, finished_at in rows
        }  # fmt: skip

    def outputs(self, ranges: Sequence[tuple[int, int, int]]) -> Statements:
        """Return `{(run, seq): Output}` for ranges (run, first, last). Reads only."""
        documents = [{"run": run, "first": first, "last": last} for run, first, last in ranges]
        rows = yield from self._dialect.run("graph_outputs", documents)
        return {
            (run, seq): Output(StepState(state), text, job_id)
            for run, seq, state, text, job_id in rows
        }

    def items(self, run: int, shape: Shape, nodes: Sequence[Node]) -> Statements:
        """Return how the items of maps stand, by the names of the maps."""
        if not nodes:
            return {}
        names = {shape.first_item(node.name): node.name for node in nodes}
        documents = [{"run": run, "first": first, "last": first + MAX_ITEMS - 2} for first in names]
        rows = yield from self._dialect.run("graph_items", documents)
        return {names[row[0]]: Items(*row[1:]) for row in rows}

    def completed_items(self, run: int, shape: Shape, node: Node) -> Statements:
        """Return the numbers of the items of a map that have completed, in an earlier attempt."""
        items = (yield from self.items(run, shape, [node]))[node.name]
        if not items.total:
            return set()
        first = shape.first_item(node.name)
        outputs = yield from self.outputs([(run, first, first + MAX_ITEMS - 2)])
        return {seq for _, seq in outputs}

    def write(self, changes: Sequence[Mapping[str, Any]]) -> Statements:
        """Write what became of rows; see `change`."""
        if changes:
            yield from self.write_and_release(changes, {})

    def write_and_release(
        self, changes: Sequence[Mapping[str, Any]], counts: Mapping[tuple[int, int], int]
    ) -> Statements:
        """Write what became of rows; then count down rows (run, seq) by the number of steps that
        have ended, and return these, as `Released`."""
        written = self._with_json(changes)
        counted = [{"run": run, "seq": seq, "by": by} for (run, seq), by in sorted(counts.items())]
        if not self._dialect.arms:
            yield from run_many(self._dialect, "graph_write", written)
            rows = yield from run_many(self._dialect, "graph_release", counted)
        else:
            rows = []
            for some, others in zip_longest(
                in_parts(written, self._dialect.part),
                in_parts(counted, self._dialect.part),
                fillvalue=(),
            ):
                document = {"changes": some, "counts": others}
                rows += yield from self._dialect.run("graph_write_and_release", document)
        return [
            Released(run, seq, pending, StepState(state), bool(stopping))
            for run, seq, pending, state, stopping in rows
        ]

    def json(self, text: str | None) -> Any:
        """JSON as the backend takes it: SQLite would parse it and write it again."""
        return msgspec.Raw(text.encode()) if text is not None and self._dialect.arms else text

    def stop(self, stops: Sequence[Mapping[str, Any]]) -> Statements:
        """Stop runs, for the first reason that is given: `run`, `kind`, `name`, `output`, `code`,
        `error`."""
        if stops:
            yield from self._dialect.run("graph_stop", self._with_json(stops))

    def jobs(self, run: int) -> Statements:
        """Return the jobs of steps that have not ended, as `StepJob`."""
        rows = yield from self._dialect.run("graph_jobs", {"run": run})
        return [
            StepJob(
                seq,
                job_id,
                state == "gone" or JobState(state).finished,
                state == JobState.COMPLETED,
                "job_gone" if state == "gone" else code,
                describe_error(code, None if facts is None else msgspec.json.decode(facts), error),
                result,
                None if finished_at is None else self._dialect.moment(finished_at),
                attempt,
            )
            for seq, job_id, state, code, error, facts, result, finished_at, attempt in rows
        ]

    def signals(self, run: int) -> Statements:
        rows = yield from self._dialect.run("graph_signals", {"run": run})
        return [Arrived(*row) for row in rows]

    def take(self, signals: Mapping[int, int]) -> Statements:
        """Record which waits took these signals."""
        if signals:
            documents = [{"id": signal, "seq": seq} for signal, seq in signals.items()]
            yield from self._dialect.run("graph_take", documents)

    def wake(self, runs: Iterable[int]) -> Statements:
        """Have suspended runs go on."""
        if found := sorted(set(runs)):
            yield from self._dialect.run("graph_wake", found)

    def suspend_one(self, suspension: Suspension, *, is_locked: bool) -> Statements:
        answers: list[SuspendAnswer] = yield from self.suspend([suspension], are_locked=is_locked)
        return answers[0]

    def cancel(self, run: int, *, reason: str | None, actor: str) -> Statements:
        """Have a run stop and undo what it did; return False if it is not a graph's, has not begun,
        or has ended."""
        yield from self.lock([run])
        found = (yield from self.runs([run])).get(run)
        if found is None or found.shape is None or (yield from self.has_ended(run)):
            return False
        yield from self.stop(
            [{"run": run, "kind": CANCEL, "name": found.shape.graph, "error": reason}]
        )
        yield from self.wake([run])
        event = {"actor": actor, "action": "job.cancel", "entity": f"job:{run}", "reason": reason}
        yield from self._dialect.run("audit_write", [{**event, "before": None, "after": None}])
        return True

    def plan_repeat(self, run: int, *, from_step: str | int | None) -> Statements:
        """Return what a run that has ended does again, as a `Repeat`: what it did not complete,
        `from_step`, what was undone, and all that depends on these. None: it is not a graph's.
        Raise `InvalidInput` if jobs of it have not ended. Writes nothing."""
        yield from self.lock([run])
        found = (yield from self.runs([run])).get(run)
        if found is None or found.shape is None:
            return None
        if not (yield from self.has_ended(run)):
            raise IllegalTransition(run, state="compensating", action="retried")
        if any(not job.ended for job in (yield from self.jobs(run))):
            # Its own job was cancelled directly. What they do would count for the steps done again.
            raise InvalidInput(
                f"Run {run} cannot be retried yet: steps or compensations of it have not ended."
            )
        shape = found.shape
        if isinstance(from_step, int) and (node := shape.node(from_step)) is not None:
            from_step = node.name
        if from_step is not None and from_step not in shape:
            known = ", ".join(node.name for node in shape.nodes)
            raise InvalidInput(f"Run {run} has no step {from_step!r}. It has: {known}.")
        rows: dict[int, GraphRow] = yield from self.rows(run, shape)
        states = {node.name: rows[shape.seq(node.name)].state for node in shape.nodes}
        again = {
            node.name
            for node in shape.nodes
            if (undo := rows.get(-shape.seq(node.name))) is not None
            and undo.state is not StepState.REGISTERED
        }
        if from_step is not None:
            again.add(str(from_step))
        repeated = steps_to_repeat(shape, states, from_steps=again)
        states |= dict.fromkeys(repeated, StepState.PENDING)
        counts = {shape.seq(name): count_pending(shape, shape[name], states) for name in repeated}
        counts[shape.end] = sum(not is_done(node, states[node.name]) for node in leaves(shape))
        resumed = maps_to_resume(shape, repeated, from_steps=again)
        undone = [-shape.seq(name) for name in repeated]
        return Repeat(
            reset=[{"run": run, "seq": seq, "pending": count} for seq, count in counts.items()],
            forgotten=[{"run": run, "first": seq, "last": seq} for seq in (0, *undone)]
            + [
                {
                    "run": run, "first": (first := shape.first_item(name)),
                    "last": first + MAX_ITEMS - 2, "keep_completed": name in resumed,
                }
                for name in repeated
            ],
        )  # fmt: skip

    def repeat(self, repeat: Repeat) -> Statements:
        """Reset what a run does again: the run is requeued in this transaction."""
        yield from run_many(self._dialect, "graph_reset", repeat.reset)
        yield from run_many(self._dialect, "graph_forget", repeat.forgotten)

    def now(self) -> Statements:
        return (yield from self._dialect.now())

    # JSON

    def _with_json(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**row, "output": self.json(row["output"])} if "output" in row else dict(row)
            for row in rows
        ]


def change(
    run: int,
    seq: int,
    state: StepState,
    *,
    output: str | None = None,
    code: str | None = None,
    error: str | None = None,
    until: datetime | None = None,
    job: int | None = None,
    pending: int | None = None,
    attempt: int | None = None,
    started_at: datetime | None = None,
    finished_at: datetime | None = None,
) -> dict[str, Any]:
    """What became of a row. What is None of `job`, `pending`, `attempt` and `started_at` stays."""
    return {
        "run": run, "seq": seq, "state": state, "output": output, "code": code, "error": error,
        "until": until, "job": job, "pending": pending, "attempt": attempt,
        "started_at": started_at, "finished_at": finished_at,
    }  # fmt: skip


def compensation_row(run: int, shape: Shape, node: Node) -> dict[str, Any]:
    """The row of what undoes a step, which has the step's number, negated."""
    return {
        "run": run, "seq": -shape.seq(node.name), "kind": COMPENSATION, "name": node.undo,
        "state": StepState.REGISTERED,
    }  # fmt: skip


def new_rows(run: int, shape: Shape) -> list[dict[str, Any]]:
    """A row for each step of a run, and for its end."""
    rows = [
        _new_row(run, shape.seq(node.name), node.kind, node.name, len(node.after))
        for node in shape.nodes
    ]
    return [*rows, _new_row(run, shape.end, END, END, len(leaves(shape)))]


def _new_row(run: int, seq: int, kind: str, name: str, pending: int) -> dict[str, Any]:
    return {
        "run": run, "seq": seq, "kind": kind, "name": name, "state": StepState.PENDING,
        "pending": pending,
    }  # fmt: skip


_shapes: dict[str, Shape] = {}
_MAX_SHAPES = 100


def _decode_shape(text: str) -> Shape:
    """Read a shape; those of the last runs are kept, since most runs share one."""
    found = _shapes.get(text)
    if found is None:
        if len(_shapes) >= _MAX_SHAPES:
            _shapes.clear()
        found = _shapes[text] = msgspec.json.decode(text, type=Shape)
    return found


def _decode_args(text: str) -> dict[str, msgspec.Raw]:
    return msgspec.json.decode(text, type=dict[str, msgspec.Raw])
