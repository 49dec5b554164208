"""Calls the functions of an application on threads, whatever they raise."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


async def call_in_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function on a thread, in a copy of this context. Returns or raises what it does."""
    answer: R
    answer, error = await asyncio.to_thread(catch, function, *args, **kwargs)
    if error is not None:
        raise error
    return answer


def catch(
    function: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> tuple[Any, BaseException | None]:
    """Call a function, and return what it returned and what it raised.

    A future cannot hold `StopIteration`: a caller that awaits it would wait for ever.
    """
    try:
        return function(*args, **kwargs), None
    except BaseException as error:  # noqa: BLE001 - a function may raise anything
        return None, error
