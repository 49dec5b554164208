"""How a user's handler of reminders or digests is called."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

from duetime.engine.context import Context


def context_name(handler: Callable[..., Any]) -> str | None:
    """The name of the parameter that takes the context; None if there is none."""
    names = list(inspect.signature(handler).parameters)
    return names[1] if len(names) > 1 else None


async def call(handler: Callable[..., Any], what: Any, ctx: Context) -> Any:
    """Call a handler, async or not, of one argument, or of two with the context."""
    args = (what,) if context_name(handler) is None else (what, ctx)
    if inspect.iscoroutinefunction(handler):
        return await handler(*args)
    return await asyncio.to_thread(handler, *args)
