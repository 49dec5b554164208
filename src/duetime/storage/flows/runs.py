"""What runs of flows record, wait for and are sent, as statements without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from duetime.domain.flows.flow import (
    ArrivedSignal,
    LoadedRun,
    NewRecord,
    StepInfo,
    StepRecord,
    StepState,
    SuspendAnswer,
    Suspension,
    undo_key,
)
from duetime.domain.jobs.job import JobState, NewJob
from duetime.domain.jobs.retry import MAX_ATTEMPTS
from duetime.errors import FlowChanged, FlowEnded, FlowNotFound, InvalidInput
from duetime.storage.store import Dialect, Statements, Store


class FlowStatements:
    """Statements of runs. Every write of a run's own is fenced by its token."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect

    def load(self, runs: Sequence[int]) -> Statements:
        """Return a `LoadedRun` for each."""
        loaded = {run: LoadedRun({}, []) for run in runs}
        for run, seq, *row in (yield from self._dialect.run("flow_load", list(runs))):
            if seq is None:
                name, data, signal = row[1], row[4], row[8]
                loaded[run].signals.append(ArrivedSignal(signal, name, data))
            else:
                kind, name, state, attempt, output, code, error, is_due, job, place = row
                loaded[run].steps[seq] = StepRecord(
                    seq, kind, name, state, attempt, output, code, error, bool(is_due), job, place
                )
        return [loaded[run] for run in runs]

    def began(self, runs: Sequence[int]) -> Statements:
        """Return when each run first ran, since it was last retried. None: it has not before."""
        rows = yield from self._dialect.run("flow_began", list(runs))
        began = {run: self._dialect.moment(at) for run, at in rows if at is not None}
        return [began.get(run) for run in runs]

    def record(self, records: Sequence[NewRecord]) -> Statements:
        """Write records; return for each whether it was accepted: else the claim is gone."""
        if not self._dialect.arms:
            # SQLite would parse and write the JSON again.
            records = [_with_text(record) for record in records]
        rows = yield from self._dialect.run("flow_record", records)
        accepted = {(run, seq) for run, seq in rows}
        return [(record.run, record.seq) in accepted for record in records]

    def try_lock(self, runs: Iterable[int]) -> Statements:
        """Lock those of the runs that nobody else has locked; return these. A transaction of a
        caller that signals a run may stay open for any time: no other run waits for it."""
        found = sorted(set(runs))
        rows = (yield from self._dialect.run("flow_try_lock", found)) if found else []
        return {run for (run,) in rows}

    def suspend(self, runs: Sequence[Suspension], *, are_locked: bool = False) -> Statements:
        """Give back the jobs of runs that wait; return a `SuspendAnswer` for each. `are_locked`: by
        an earlier statement of this transaction."""
        locked = {run.run for run in runs}
        if not are_locked:
            locked = yield from self.try_lock(locked)
        free = [msgspec.structs.asdict(run) for run in runs if run.run in locked]
        answers: dict[int, SuspendAnswer] = {}
        if free:
            answers = dict((yield from self._dialect.run("flow_suspend", free)))
            if not self._dialect.arms:
                yield from self._dialect.run("flow_release", free)
        return [answers.get(run.run, "busy") for run in runs]

    def signal(self, run: int, name: str, data: Any, *, key: str | None, by: str) -> Statements:
        """Send a signal to a run; return False if it has one of this name and key."""
        document = {"run": run, "name": name, "data": data, "key": key, "by": by}
        if self._dialect.arms:
            [(answer,)] = yield from self._dialect.run("flow_signal", document)
        else:
            answer = yield from self._signal_alone(document)
        if answer == "missing":
            raise FlowNotFound(run)
        if answer not in ("sent", "repeated"):
            raise FlowEnded(run, state=answer)
        return answer == "sent"

    def _signal_alone(self, document: dict[str, Any]) -> Statements:
        """As the SQL function `_signal_flow` does it."""
        # As JSON already: a time in it stays a text, and need not have a zone.
        data = document.pop("data")
        [(state, is_repeated)] = yield from self._dialect.run("flow_state", document)
        if not state:
            return "missing"
        if JobState(state).finished:
            return "repeated" if is_repeated else state
        document["data_text"] = None if data is None else msgspec.json.encode(data).decode()
        if not (yield from self._dialect.run("flow_signal", document)):
            return "repeated"
        yield from self._dialect.run("flow_wake_waiting", document)
        return "sent"

    def start_jobs(self, store: Store, starts: Sequence[tuple[NewRecord, NewJob]]) -> Statements:
        """Record that a run waits for jobs, and enqueue them; return their ids. None: the claim is
        gone. A job that was started before is found by its key."""
        accepted = yield from self.record([record for record, _ in starts])
        if not all(accepted):
            return None
        enqueued = yield from store.enqueue_in([job for _, job in starts])
        ids = [answer.job_id for answer in enqueued]
        yield from self.record(
            [
                msgspec.structs.replace(record, job=job_id)
                for (record, _), job_id in zip(starts, ids, strict=True)
            ]
        )
        return ids

    def jobs_finished(self, jobs: Sequence[int]) -> Statements:
        """Copy how jobs ended into the steps that they did, and wake their runs. Return the jobs of
        runs that another transaction has locked: try again."""
        holders = yield from self._dialect.run("flow_holders", list(jobs))
        locked = yield from self.try_lock(run for _, run in holders)
        if ours := [job for job, run in holders if run in locked]:
            ready = yield from self._dialect.run("flow_jobs_finished", ours)
            if ready:
                yield from self._dialect.run("flow_wake", [run for (run,) in ready])
        return [job for job, run in holders if run not in locked]

    def check(self) -> Statements:
        """Return whether a worker may have something to repair: a step that waits for a job, a
        compensation, a signal that nobody took. Reads only."""
        return bool((yield from self._dialect.run("flow_check", {})))

    def job_steps(self, after: int) -> Statements:
        """Return some steps and compensations that wait for a job: the job, whether it has ended,
        and whether it is to end, since it does a step of a run that has."""
        rows = yield from self._dialect.run("flow_job_steps", {"after": after})
        return [(job, bool(ended), bool(stops)) for job, ended, stops in rows]

    def jobs_of(self, runs: Sequence[int]) -> Statements:
        """Return the jobs of steps that these runs wait for."""
        return [job for (job,) in (yield from self._dialect.run("flow_jobs_of", list(runs)))]

    def undo(self, store: Store, runs: Sequence[int]) -> Statements:
        """Enqueue the jobs that run the compensations of those of these runs that have failed."""
        rows = yield from self._dialect.run("flow_uncompensated", list(runs))
        if rows:
            # A rerun locks it, too: either its compensations run, or its steps.
            failed = [row[0] for row in rows]
            yield from self._dialect.run("lock_jobs", failed)
            rows = yield from self._dialect.run("flow_uncompensated", failed)
        if rows:
            yield from store.enqueue_in(
                [
                    NewJob(
                        task=task,
                        args=msgspec.Raw(args.encode()),
                        queue=queue,
                        priority=priority,
                        key=undo_key(run),
                        max_attempts=MAX_ATTEMPTS,
                    )
                    for run, task, args, queue, priority in rows
                ]
            )
        return len(rows)

    def compensations(self, after: int) -> Statements:
        """Return some runs that have compensations registered, by their number."""
        document = {"after": after}
        return [run for (run,) in (yield from self._dialect.run("flow_compensations", document))]

    def wake_signalled(self) -> Statements:
        """Wake runs that wait for a signal that is there; return how many."""
        overdue = yield from self._dialect.run("flow_overdue", {})
        runs = yield from self.try_lock(run for (run,) in overdue)
        if runs:
            yield from self._dialect.run("flow_wake", sorted(runs))
        return len(runs)

    def has_ended(self, run: int) -> Statements:
        """Whether the job of a run has ended, or is gone."""
        rows = yield from self._dialect.run("graph_state", {"run": run})
        return not rows or JobState(rows[0][0]).finished

    def calls_to_repeat(self, run: int) -> Statements:
        """Return the calls that a run which has failed makes again when it is retried; raise
        `InvalidInput` if its compensations have run. Reads only."""
        steps = yield from self.steps(run)
        failure = next((step for step in steps if step.kind == "failure"), None)
        undone = [step.name for step in steps if step.seq < 0 and step.state != "skipped"]
        # If its code has changed, nothing was undone.
        if undone and (failure is None or failure.error_code != FlowChanged.code):
            raise InvalidInput(
                f"Run {run} cannot be retried, since its compensations run or have run: "
                f"{', '.join(undone)}. Do its steps again from one of them: "
                f"`duetime flows retry {run} --from-step NAME`, or rerun(from_step=…) in Python."
            )
        return [] if failure is None else failure.output or []

    def forget(self, run: int, calls: Sequence[int]) -> Statements:
        """Forget calls of a run that has ended, so that it makes them again."""
        yield from self._dialect.run("flow_forget", {"run": run, "calls": list(calls)})

    def waiting_for(self, name: str, correlation: str) -> Statements:
        """Return the runs that wait for this signal with this correlation."""
        document = {"name": name, "correlation": correlation}
        rows = yield from self._dialect.run("flow_waiting", document)
        return [run for (run,) in rows]

    def steps(self, run: int) -> Statements:
        """Return what a run has recorded, in order, as people see it."""
        rows = yield from self._dialect.run("flow_steps", {"run": run})
        return [read_step(self._dialect, row) for row in rows]


def read_step(dialect: Dialect, row: Sequence[Any]) -> StepInfo:
    """Make a step of its row, as people see it."""
    (
        seq, kind, name, state, attempt, output, code, error, until, correlation, job, started,
        finished,
    ) = row  # fmt: skip
    moment = dialect.moment
    return StepInfo(
        seq=seq,
        kind=kind,
        name=name,
        state=StepState(state),
        attempt=attempt,
        output=None if output is None else msgspec.json.decode(output),
        error_code=code,
        error=error,
        until=None if until is None else moment(until),
        correlation=correlation,
        job_id=job,
        started_at=None if started is None else moment(started),
        finished_at=None if finished is None else moment(finished),
    )


def _with_text(record: NewRecord) -> NewRecord:
    if record.output is None:
        return record
    text = bytes(record.output).decode()
    return msgspec.structs.replace(record, output=None, output_text=text)
