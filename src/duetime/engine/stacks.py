"""The current stack of a task or a thread, formatted like a traceback."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

_MAX_FRAMES = 40
"""The innermost ones, which show what blocks."""


def stack_of_task(task: asyncio.Task[Any]) -> str:
    """Return where a suspended task waits. (`Task.get_stack` stops at its outermost coroutine.)"""
    return _format(list(_suspended(task)))


def stack_of_thread(thread_id: int | None) -> str:
    """Return where a thread is; empty if there is no such thread."""
    frame = sys._current_frames().get(thread_id or 0)
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    return _format(frames[::-1])


def _suspended(task: asyncio.Task[Any]) -> Iterator[FrameType]:
    awaited: Any = task.get_coro()
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _format(frames: list[FrameType]) -> str:
    lines = ((frame, frame.f_lineno) for frame in frames[-_MAX_FRAMES:])
    return "".join(traceback.StackSummary.extract(lines).format())
