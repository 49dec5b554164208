"""What all screens share."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from duetime.web.dashboard.kept import Kept, Shared
from duetime.web.dashboard.rendering import Templates

if TYPE_CHECKING:
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
        self.totals = Kept(app.stats.totals, seconds=_TOTALS_SECONDS)
        self.refreshed: Shared[Any] = Shared(seconds=_REFRESH_SECONDS)
        """What pages that are open in several tabs show when they refresh themselves."""
