"""The screen of the search box: whatever a text may name."""

from __future__ import annotations

from typing import Any

from fastapi.responses import RedirectResponse

from duetime.domain.stats.search import Match
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, Pages
from duetime.web.dashboard.rendering import make_url

_MOST = 50
_PLACES = {
    "job": "jobs",
    "flow": "flows",
    "run": "flows",
    "reminder": "reminders",
    "schedule": "schedules",
    "subject": "subjects",
    "recipient": "recipients",
    "queue": "queues",
}


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/search", "search.html")
    async def show_found(ask: Ask) -> Any:
        text = ask.query.get("q", "").strip()
        found = await app.stats.search(text, limit=_MOST) if text else []
        root = ask.request.scope.get("root_path", "")
        exact = [one for one in found if one.exact]
        if len(exact) == 1:
            return RedirectResponse(link_to(root, exact[0]), status_code=303)
        return {"text": text, "found": [(one, link_to(root, one)) for one in found]}

    return pages


def link_to(root: str, found: Match) -> str:
    """The page of what was found."""
    if found.kind in _PLACES and found.id is not None:
        return make_url(root, _PLACES[found.kind], found.id)
    match found.kind:
        case "task":
            return make_url(root, "jobs", task=found.name)
        case "flow":
            return make_url(root, "flows", flow=found.name)
        case "scope":
            return make_url(root, "subjects", scope=found.name)
        case "worker":
            return make_url(root, "workers")
        case "table":
            return make_url(root, "tables")
    return make_url(root, _PLACES[found.kind], found.name)
