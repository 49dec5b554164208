"""The screens of queues."""

from __future__ import annotations

from typing import Any

from duetime.domain.duration import read_duration
from duetime.domain.jobs.facets import MOST_COUNTED
from duetime.errors import InvalidInput
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, GoTo, Pages

_ROWS = 50


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/queues", "queues.html")
    async def show_queues(ask: Ask) -> dict[str, Any]:
        return {"queues": (await app.stats.now()).queues}

    @pages.page("/queues/{queue}", "queue.html")
    async def show_queue(ask: Ask, queue: str) -> dict[str, Any]:
        info = await app.queues.get(queue, count_to=MOST_COUNTED)
        stats = next((one for one in (await app.stats.now()).queues if one.name == queue), None)
        return {
            "queue": info,
            "stats": stats,
            "explanation": await app.queues.explain(queue),
            "jobs": await app.jobs.list(queue=queue, limit=20),
            "events": await app.queues.audit(queue, limit=20),
        }

    @pages.action("/queues/{queue}/pause")
    async def pause(ask: Ask, queue: str) -> GoTo:
        reason = (await ask.form()).get("reason", "")
        await app.queues.pause(queue, reason=reason, by=ask.visitor.name)
        return GoTo(["queues", queue], said=f"Queue {queue} is paused. Running jobs go on.")

    @pages.action("/queues/{queue}/resume")
    async def resume(ask: Ask, queue: str) -> GoTo:
        await app.queues.resume(queue, by=ask.visitor.name)
        return GoTo(["queues", queue], said=f"Queue {queue} is resumed.")

    @pages.action("/queues/{queue}/limit")
    async def limit(ask: Ask, queue: str) -> GoTo:
        form = await ask.form()
        period = form.get("period", "").strip()
        await app.queues.limit(
            queue,
            running=_number(form.get("running"), "Running at once"),
            per_partition=_number(form.get("per_partition"), "Per partition"),
            rate=_number(form.get("rate"), "Starts"),
            period=read_duration(period, name="The period") if period else None,
            by=ask.visitor.name,
        )
        return GoTo(["queues", queue], said=f"The limits of queue {queue} are changed.")

    return pages


def _number(text: str | None, name: str) -> int | None:
    if text is None or not text.strip():
        return None
    if not (text.strip().isascii() and text.strip().isdigit() and len(text) < 12):
        raise InvalidInput(f"{name} must be an integer, got {text!r:.40}. Leave it empty for none.")
    return int(text)
