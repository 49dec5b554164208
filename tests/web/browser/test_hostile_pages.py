"""Everything that is stored is hostile: no page runs it, whatever field it stands in."""

from __future__ import annotations

import logging
import re
from datetime import timedelta
from urllib.parse import quote

import pytest
from fastapi.routing import APIRoute
from playwright.async_api import Page

from duetime import Discard, Duetime, Flow
from tests.waiting import until
from tests.web.conftest import Running

BAD = '"\'><img src=x onerror="window.hacked=1"><script>window.hacked=1</script>{{7*191}}'
"""Closes attributes and elements, runs a script, and is a template."""
_TAKES_A_MINUTE = pytest.mark.timeout(240)


async def fill(app: Duetime) -> dict[str, list[object]]:
    """Put the text wherever text can be put; return what the parameters of paths may be."""

    @app.task(name=BAD[:150])
    async def fail(value: dict[str, str]) -> None:
        logging.getLogger(BAD[:50]).warning(BAD)
        raise Discard(BAD)

    @app.flow(name=f"flow {BAD[:150]}")
    async def flow(flow: Flow, value: str) -> None:
        await flow.step(echo, value)
        await flow.wait_for(BAD[:150])

    job = await fail.using(key=BAD, queue=BAD[:100]).enqueue(value={BAD: BAD})
    run = await flow.using(key=f"run {BAD}").start(value=BAD)
    due = await app.now() + timedelta(days=2)
    await app.scopes.put(BAD, remind=["-1d"])
    await app.recipients.put(BAD, quiet="22:00-07:00")
    await app.subjects.put(BAD, scope=BAD, due=due, recipients=[BAD], data={"title": BAD}, by=BAD)
    await app.subjects.put(BAD, scope=BAD, due=due + timedelta(hours=1), recipients=[BAD], by=BAD)
    await app.schedules.put(BAD, fail, "0 9 * * *", args={"value": {BAD: BAD}}, by=BAD)
    await app.schedules.pause(BAD, reason=BAD, by=BAD)
    await app.queues.pause(f"queue {BAD[:100]}", reason=BAD, by=BAD)
    await app.accounts.add("ann", role="viewer", password="correct horse battery", by=BAD)
    await app.tokens.create("ci", scope="read", by=BAD)

    async def is_done() -> bool:
        dead = (await app.jobs.get(job.id)).state == "dead"
        return dead and await app.flows.status(run.id) == "waiting"

    async with app.worker(queues=["default", BAD[:100]]):
        await until(is_done)
    reminder = (await app.reminders.list(subject=BAD))[0]
    return {
        "job_id": [job.id, run.id],
        "run_id": [run.id],
        "reminder_id": [reminder.id],
        "queue": [BAD[:100], f"queue {BAD[:100]}"],
        "ref": [BAD],
        "name": [BAD, "ann"],
        "tick": [due.isoformat()],
        "secret": ["x"],
    }


async def echo(value: str) -> str:
    return value


@_TAKES_A_MINUTE
async def test_no_page_runs_what_is_stored(app: Duetime, service: Running, page: Page) -> None:
    known = await fill(app)
    opened: list[str] = []
    page.on("dialog", lambda dialog: opened.append(dialog.message))
    walked = 0

    for route in service.service.routes:
        if not isinstance(route, APIRoute) or "GET" not in (route.methods or ()):
            continue
        if route.path.startswith(("/api", "/live", "/metrics", "/login/", "/healthz", "/readyz")):
            continue
        names = re.findall(r"\{(\w+)", route.path)
        for value in known[names[0]] if names else [None]:
            path = route.path
            for name in names:
                part = value if name == names[0] else known[name][0]
                path = path.replace("{" + name + "}", quote(str(part), safe=""))
            answer = await page.goto(f"{path}?q={quote(BAD)}")
            assert answer is not None
            assert answer.status < 500, path
            assert await page.evaluate("window.hacked") is None, path
            assert "1337" not in await page.inner_text("body"), path
            walked += 1

    assert walked > 25
    assert opened == []


async def test_no_query_runs_on_a_page(app: Duetime, page: Page) -> None:
    filters = ("state", "task", "queue", "key", "error_code", "args", "after", "kind", "by",
               "entity", "status", "scope", "window", "zoom", "spec", "tz", "next")  # fmt: skip
    query = "&".join(f"{name}={quote(BAD)}" for name in filters)

    for path in ("/", "/jobs", "/audit", "/subjects", "/reminders", "/timing", "/schedules",
                 "/schedules/preview", "/flows", "/search", "/login"):  # fmt: skip
        for asked in (query, *(f"{name}={quote(BAD)}" for name in filters[:4])):
            answer = await page.goto(f"{path}?{asked}")
            assert answer is not None
            assert answer.status < 500, path
            assert await page.evaluate("window.hacked") is None, path
