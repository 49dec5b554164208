"""The recorded jobs of APScheduler 3, as a module from which they are imported."""

from __future__ import annotations

from types import SimpleNamespace

from tests.recorded.objects import read

scheduler = SimpleNamespace(get_jobs=lambda: read("apscheduler3.json")["jobs"])
