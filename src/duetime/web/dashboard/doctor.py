"""The screen of the doctor: what is wrong with the installation, and what to do."""

from __future__ import annotations

from typing import Any

from duetime.domain.access.token import TokenScope
from duetime.domain.findings import FindingLevel
from duetime.web.dashboard.frame import Frame
from duetime.web.dashboard.kept import Kept
from duetime.web.dashboard.pages import Ask, Pages

_KEEP_SECONDS = 20.0
"""An examination opens connections, and a page that is open is read again and again."""


def pages(frame: Frame) -> Pages:
    pages = Pages(frame)
    examined = Kept(frame.app.examine, seconds=_KEEP_SECONDS)

    # It names the database, its sessions and their users.
    @pages.page("/doctor", "doctor.html", scope=TokenScope.ADMIN, from_replica=False)
    async def show_findings(ask: Ask) -> dict[str, Any]:
        findings = await examined.get()
        worst_first = [FindingLevel.ERROR, FindingLevel.WARNING]
        troubles = [one for level in worst_first for one in findings if one.level is level]
        return {
            "troubles": troubles,
            "good": [one for one in findings if one.level is FindingLevel.OK],
        }

    return pages
