"""The screens of jobs: find them, act on all that match, and one of them in full."""

from __future__ import annotations

import re
import shlex
from typing import Annotated, Any
from urllib.parse import parse_qsl, urlencode

import msgspec
from fastapi import Path

from duetime.app import Duetime
from duetime.domain.jobs.bulk import BULK_TASK
from duetime.domain.jobs.job import JobInfo, JobState
from duetime.errors import InvalidInput
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages
from duetime.web.filters import check_shown
from duetime.web.forms import read_json

JobId = Annotated[int, Path(ge=1, le=2**63 - 1)]

FILTERS = ("state", "task", "queue", "key", "error_code", "args")
"""What can be chosen on the page, and stands in its URL."""

_ID = re.compile(r"[0-9]{1,19}")
_ROWS = 50
_FACETS = 12
_GROUPS = 30
_COUNTED = 500
"""Of each state, as the page is read again and again. What is more is `500+`."""
_GROUPED = 500
"""Of dead jobs, the newest are grouped by their error."""


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/jobs", "jobs.html")
    async def show_jobs(ask: Ask) -> dict[str, Any]:
        filters = read_filters(app, dict(ask.query))
        jobs = await app.jobs.list(**filters, after=ask.query.get("after") or None, limit=_ROWS)
        facets = await app.jobs.facets(**filters, count_to=_COUNTED)
        groups = []
        if filters.get("state") == "dead":
            groups = await app.jobs.errors(**filters, count_to=_GROUPED)
        return {
            "jobs": jobs,
            "facets": facets,
            "queues": _most(facets.queues),
            "tasks": _most(facets.tasks),
            "groups": groups[:_GROUPS],
            "chosen": {name: ask.query.get(name) or None for name in FILTERS},
            "filters": urlencode(
                {name: ask.query[name] for name in FILTERS if ask.query.get(name)}
            ),
            "matching": _matching(facets.states, filters.get("state")),
        }

    @pages.action("/jobs")
    async def act_on_many(ask: Ask) -> GoTo:
        """Act on the jobs that are selected, or on all that match the filters of the page."""
        form = await ask.form()
        do = form.get("do")
        if form.get("all") == "yes":
            filters = read_filters(app, dict(parse_qsl(form.get("filters", ""))))
            start = app.jobs.cancel_all if do == "cancel" else app.jobs.requeue_all
            job = await start(**filters, by=ask.visitor.name)
            return GoTo(["jobs", job.id], said="It acts on all that matched; its progress is here.")
        ids = [int(one) for one in form.getlist("id") if _ID.fullmatch(one)]
        if not ids:
            raise InvalidInput("No job is selected.")
        done = 0
        for job_id in ids:
            if do == "cancel":
                await app.jobs.cancel(job_id, by=ask.visitor.name)
            else:
                await app.jobs.requeue(job_id, by=ask.visitor.name)
            done += 1
        word = "cancelled" if do == "cancel" else "requeued"
        return GoTo(["jobs"], said=f"{done} jobs are {word}.")

    @pages.page("/jobs/{job_id}", "job.html")
    async def show_job(ask: Ask, job_id: JobId) -> dict[str, Any]:
        # Redacted here: the command repeats its arguments.
        job = app.redacted(await app.jobs.get(job_id))
        return {
            "job": job,
            "bulk": await app.jobs.bulk_action(job_id) if job.task == BULK_TASK else None,
            "explanation": await app.jobs.explain(job_id),
            "events": await app.jobs.audit(job_id, limit=20),
            "command": write_command(job),
        }

    @pages.action("/jobs/{job_id}/cancel")
    async def cancel(ask: Ask, job_id: JobId) -> GoTo:
        reason = (await ask.form()).get("reason") or None
        was = await app.jobs.cancel(job_id, reason=reason, by=ask.visitor.name)
        said = "is being stopped" if was is JobState.RUNNING else "was cancelled"
        return GoTo(["jobs", job_id], said=f"Job {job_id} {said}.")

    @pages.action("/jobs/{job_id}/requeue")
    async def requeue(ask: Ask, job_id: JobId) -> GoTo:
        await app.jobs.requeue(job_id, by=ask.visitor.name)
        return GoTo(["jobs", job_id], said=f"Job {job_id} has new attempts and waits again.")

    @pages.action("/jobs/{job_id}/run")
    async def run_now(ask: Ask, job_id: JobId) -> GoTo:
        await app.jobs.reschedule(job_id, ask.now, by=ask.visitor.name)
        return GoTo(["jobs", job_id], said=f"Job {job_id} is due now.")

    @pages.action("/jobs/{job_id}/replay")
    async def replay(ask: Ask, job_id: JobId) -> GoTo:
        text = (await ask.form()).get("args", "")
        args = read_json(text, dict[str, Any], what="The arguments must be a JSON object")
        new = await app.jobs.replay(job_id, args, by=ask.visitor.name)
        return GoTo(["jobs", new.id], said=f"Job {new.id} is a replay of job {job_id}.")

    return pages


def read_filters(app: Duetime, given: dict[str, str]) -> dict[str, Any]:
    """What the URL of the page filters by."""
    filters: dict[str, Any] = {name: given[name] for name in FILTERS if given.get(name)}
    state = filters.get("state")
    if state is not None and state not in list(JobState):
        raise InvalidInput(f"There is no state {state!r:.60} of jobs.")
    if "args" in filters:
        filters["args"] = [part for part in filters["args"].split(",") if part.strip()]
    check_shown(app, filters)
    return filters


def write_command(job: JobInfo) -> str:
    """The command that shows the job; of a finished one, the command that replays it."""
    if not job.state.finished:
        return shlex.join(["duetime", "jobs", "get", str(job.id)])
    args = msgspec.json.encode(job.args).decode()
    return shlex.join(["duetime", "jobs", "replay", str(job.id), "--args", args])


def _most(counts: dict[str, Any]) -> list[tuple[str, Any]]:
    ordered = sorted(counts.items(), key=lambda pair: -pair[1].value)
    return ordered[:_FACETS]


def _matching(states: dict[JobState, Any], chosen: str | None) -> str | None:
    """How many jobs match; None: it cannot be said in one number."""
    if chosen is not None:
        return str(states.get(JobState(chosen), 0))
    return None
