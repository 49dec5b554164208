"""What all screens share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from duetime.web.dashboard.kept import Kept, Refreshes
from duetime.web.dashboard.rendering import Templates
from duetime.web.dashboard.replica import Replica

if TYPE_CHECKING:
    from starlette.responses import Response

    from duetime.app import Duetime
    from duetime.web.access import Access

_TOTALS_SECONDS = 3.0
_REFRESH_SECONDS = 1.0


class Frame:
    """The app behind the dashboard, its doors, its templates and the numbers of the side bar."""

    def __init__(self, app: Duetime, access: Access) -> None:
        self.app = app
        self.access = access
        self.templates = Templates()
        self.replica = Replica(app)
        self.totals = Kept(app.stats.totals, seconds=_TOTALS_SECONDS)
        self.refreshes: Refreshes[str | Response] = Refreshes(seconds=_REFRESH_SECONDS)
