"""The screen of the audit: who changed what."""

from __future__ import annotations

from typing import Any, cast

from duetime.domain.audit import KINDS, AuditKind
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.pages import Ask, Pages

_ROWS = 50


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    app = frame.app

    @pages.page("/audit", "audit.html")
    async def show_audit(ask: Ask) -> dict[str, Any]:
        events = await app.audit.list(
            entity=ask.query.get("entity") or None,
            kind=cast("AuditKind | None", ask.query.get("kind") or None),
            by=ask.query.get("by") or None,
            after=ask.query.get("after") or None,
            limit=_ROWS,
        )
        return {"events": events, "kinds": KINDS, "kind": ask.query.get("kind")}

    return pages
