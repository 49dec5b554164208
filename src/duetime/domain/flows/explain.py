"""What a run of a flow does or waits for, and since when: a code, one sentence, and the facts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from duetime.domain.flows.flow import StepInfo, StepState
from duetime.domain.flows.run import FlowInfo, FlowState
from duetime.domain.jobs.explain import round_wait
from duetime.domain.reasons import Check, Explanation, make_explanation

FLOW_SENTENCES = {
    # It has ended.
    "flow_completed": "Run {run} of flow {flow!r} completed at {finished_at:utc}.",
    "flow_failed": "Run {run} of flow {flow!r} failed at {finished_at:utc}[ in step {step!r}]"
    "[: {error}]. Retry it to go on from there.",
    "flow_undone": "Run {run} of flow {flow!r} failed at {finished_at:utc}[ in step {step!r}]"
    "[: {error}]. It was undone by {undone:list}. Run its steps again from one of them, or start "
    "it anew.",
    "flow_cancelled": "Run {run} of flow {flow!r} was cancelled at {finished_at:utc}[: {error}].",
    "flow_expired": "Run {run} of flow {flow!r} expired at {finished_at:utc}[: {error}].",
    "flow_superseded": "Run {run} of flow {flow!r} was superseded at {finished_at:utc}[: {error}].",
    "flow_compensating": "Run {run} of flow {flow!r} is being undone[: {error}]. "
    "{left} compensations have not run.",
    # It runs, or waits.
    "flow_running": "Run {run} of flow {flow!r} is running on the worker {worker}"
    "[; its last step was {step!r}].",
    "flow_steps_running": "Run {run} of flow {flow!r} is running: {running:list}.",
    "flow_sleeping": "Run {run} of flow {flow!r} sleeps until {until:utc}, for another "
    "{wait:span}.",
    "flow_waiting": "Run {run} of flow {flow!r} has waited since {since:utc} for {waits:list}"
    "[, until {until:utc}].",
    "flow_retrying": "Run {run} of flow {flow!r} tries {step!r} again at {until:utc}, in "
    "{wait:span}, after attempt {attempts} failed[: {error}].",
    "flow_not_due": "Run {run} of flow {flow!r} is not due: it may start at {run_at:utc}, in "
    "{wait:span}.",
    # Each thing that it waits for.
    "waits_for_time": "It sleeps until {until:utc}.",
    "waits_for_signal": "It has waited since {since:utc} for the signal {name!r}"
    "[ with the correlation {correlation!r}][, until {until:utc}].",
    "waits_for_run": "It has waited since {since:utc} for the run {job} of {name!r}.",
    "waits_for_job": "It has waited since {since:utc} for the job {job} of the step {name!r}.",
    "waits_for_retry": "Step {name!r} is tried again at {until:utc}[: {error}].",
    "step_running": "Step {name!r} has run or waited for a worker since {since:utc}"
    "[, as job {job}].",
    # What only the chain of checks tells.
    "flow_begun": "It began at {started_at:utc}.",
}
_RAN = (StepState.COMPLETED, StepState.FAILED)
_ENDED = {
    FlowState.COMPLETED: "flow_completed",
    FlowState.FAILED: "flow_failed",
    FlowState.CANCELLED: "flow_cancelled",
    FlowState.EXPIRED: "flow_expired",
    FlowState.SUPERSEDED: "flow_superseded",
}


def explain_run(
    run: FlowInfo, *, steps: Sequence[StepInfo], job: Explanation, now: datetime
) -> Explanation:
    """Explain a run by what it waits for. One that waits for a worker is explained by its job: no
    worker knows the flow, its queue is paused, and so on. `steps`: with the record of its failure,
    which has the number 0."""
    found = _explain_state(run, steps, job, now)
    if found is job:
        return job
    return msgspec.structs.replace(found, checks=_make_chain(run, found))


def _make_chain(run: FlowInfo, found: Explanation) -> tuple[Check, ...]:
    completed = "Has it completed?"
    if run.state in _ENDED:
        passed = run.state is FlowState.COMPLETED
        return (Check(completed, passed, found.sentence, found.code),)
    if found.code == "flow_not_due":
        due = Check("Is it due?", False, found.sentence, found.code)
        return due, Check("Has it begun?", None), Check(completed, None)
    waits = [
        Check(_ask(step), False, why.sentence, why.code)
        for step, why in zip(run.waits, found.steps, strict=True)
    ]
    began = _explain("flow_begun", {"started_at": run.started_at or run.created_at})
    begun = Check("Has it begun?", True, began.sentence, began.code)
    return begun, *waits, Check(completed, None)


def _ask(step: StepInfo) -> str:
    """What is checked of a step that the run waits for."""
    match step.kind:
        case "sleep":
            return "Has it slept long enough?"
        case "signal":
            return f"Has the signal {step.name!r} arrived?"
        case "child":
            return f"Has the run {step.job_id} of {step.name!r} ended?"
    return f"Has the step {step.name!r} finished?"


def _explain_state(
    run: FlowInfo, steps: Sequence[StepInfo], job: Explanation, now: datetime
) -> Explanation:
    facts = {"run": run.id, "flow": run.flow, "state": run.state.value, "now": now}
    if run.state in _ENDED:
        ending = _ending(run, steps)
        code = "flow_undone" if ending.get("undone") else _ENDED[run.state]
        return _explain(code, facts | ending)
    waits = [_explain_wait(step) for step in run.waits]
    match run.state:
        case FlowState.COMPENSATING:
            left = [step for step in steps if step.seq < 0 and step.finished_at is None]
            failed = {"error": run.error, "left": len(left)}
            return _explain("flow_compensating", facts | failed, waits)
        case FlowState.RUNNING if run.worker is None:
            running = [step.name for step in run.waits if step.state is StepState.RUNNING]
            return _explain("flow_steps_running", facts | {"running": running}, waits)
        case FlowState.RUNNING if job.code == "running":
            last = [step.name for step in steps if step.seq > 0][-1:]
            ran = {"worker": run.worker, "step": last[0] if last else None}
            return _explain("flow_running", facts | ran, waits)
        case FlowState.SLEEPING | FlowState.WAITING | FlowState.RETRYING if run.waits:
            return _explain(f"flow_{run.state}", facts | _wait(run, now), waits)
        case FlowState.PENDING if job.code == "not_due" and run.run_at is not None:
            due = {"run_at": run.run_at, "wait": round_wait(run.run_at - now)}
            return _explain("flow_not_due", facts | due)
    return job


def _explain(code: str, facts: dict[str, Any], steps: Sequence[Explanation] = ()) -> Explanation:
    return make_explanation(FLOW_SENTENCES, code, facts, steps=steps)


def _ending(run: FlowInfo, steps: Sequence[StepInfo]) -> dict[str, Any]:
    facts: dict[str, Any] = {"finished_at": run.finished_at}
    if run.state is FlowState.COMPLETED:
        return facts
    step = _find_failed_step(steps) if run.state is FlowState.FAILED else None
    # A graph does again what was undone.
    is_graph = any(one.after for one in steps)
    undone = [one.name for one in steps if one.seq < 0 and one.state in _RAN]
    # Its text ends the sentence.
    error = None if run.error is None else run.error.removesuffix(".")
    return facts | {
        "step": step,
        "error": error,
        "error_code": run.error_code,
        "undone": undone if run.state is FlowState.FAILED and not is_graph else None,
    }


def _find_failed_step(steps: Sequence[StepInfo]) -> str | None:
    """The step because of which a run failed. Others may have failed before, which the function
    handled, or have been cancelled after it."""
    why = next((step for step in steps if step.seq == 0 and step.kind == "failure"), None)
    if why is None:
        return None
    # A graph's failure has the name of the step, a function's the numbers of the calls that a retry
    # makes again: those that failed, and others that came after them.
    calls = why.output if isinstance(why.output, list) else None
    failed = [step for step in steps if step.seq > 0 and step.state is StepState.FAILED]
    for step in failed:
        if step.seq in calls if calls is not None else step.name == why.name:
            return step.name
    return None


def _wait(run: FlowInfo, now: datetime) -> dict[str, Any]:
    untils = [step.until for step in run.waits if step.until is not None]
    until = min(untils) if untils else None
    sinces = [step.started_at for step in run.waits if step.started_at is not None]
    failed = next((step for step in run.waits if step.state is StepState.RETRYING), None)
    return {
        "waits": [_name(step) for step in run.waits],
        "since": min(sinces) if sinces else run.created_at,
        "until": until,
        "wait": None if until is None else round_wait(max(until - now, now - now)),
        "step": None if failed is None else failed.name,
        "attempts": None if failed is None else failed.attempt,
        "error": None if failed is None else failed.error,
    }


def _name(step: StepInfo) -> str:
    match step.kind:
        case "sleep":
            return "a time"
        case "signal":
            return f"the signal {step.name!r}"
        case "child":
            return f"the run {step.job_id} of {step.name!r}"
    return f"the step {step.name!r}"


def _explain_wait(step: StepInfo) -> Explanation:
    facts = {
        "seq": step.seq,
        "name": step.name,
        "since": step.started_at,
        "until": step.until,
        "correlation": step.correlation,
        "job": step.job_id,
        "error": step.error,
    }
    if step.state is StepState.RETRYING:
        return _explain("waits_for_retry", facts)
    if step.state is StepState.RUNNING:
        return _explain("step_running", facts)
    codes = {"sleep": "waits_for_time", "signal": "waits_for_signal", "child": "waits_for_run"}
    return _explain(codes.get(step.kind, "waits_for_job"), facts)
