"""How a user's handler of reminders or digests is called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from duetime.engine.context import Context


async def call(handler: Callable[..., Any], what: Any, ctx: Context) -> Any:
    """Call a handler, async or not, of one argument, or of two with the context."""
    wants_context = len(inspect.signature(handler).parameters) > 1
    args = (what, ctx) if wants_context else (what,)
    if inspect.iscoroutinefunction(handler):
        return await handler(*args)
    return await asyncio.to_thread(handler, *args)
