"""The screen of tracked tables."""

from __future__ import annotations

from typing import Any

from duetime.domain.access.token import TokenScope
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, Pages


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    # It shows values of the application's own rows.
    @pages.page("/tables", "tables.html", scope=TokenScope.ADMIN)
    async def show_tables(ask: Ask) -> dict[str, Any]:
        return {"tables": await app.tables.list(after=ask.query.get("after") or None)}

    return pages
