"""The recorded Celery app, as a module from which `duetime import celery-beat` takes it."""

from __future__ import annotations

from types import SimpleNamespace

from tests.recorded.objects import read

recorded = read("celery_beat.json")
app = SimpleNamespace(
    conf=SimpleNamespace(
        beat_schedule=recorded["beat_schedule"],
        timezone=recorded["timezone"],
        enable_utc=recorded["enable_utc"],
    ),
    loader=SimpleNamespace(import_default_modules=lambda: None),
    finalize=lambda: None,
)
