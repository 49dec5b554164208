"""`app.jobs[42]`: one thing, with the verbs of its noun."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import msgspec

from duetime.domain.page import Page

N = TypeVar("N")
P = ParamSpec("P")
R = TypeVar("R")
Ref = TypeVar("Ref")
T = TypeVar("T")


# An enqueue of many jobs makes a handle for each: without garbage collection, which would walk them
# all again and again, that takes a fifth of the time.
class Handle(msgspec.Struct, Generic[N, Ref], eq=False, gc=False):
    """One thing of a noun, by its identifier. Creating a handle makes no database call."""

    _noun: N
    _ref: Ref

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._ref!r}>"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._ref == self._ref and other._noun is self._noun

    def __hash__(self) -> int:
        return hash((type(self), self._ref))


class bound(Generic[P, R]):  # noqa: N801 -- reads as a decorator
    """A verb of the noun on its handles: the same, with the identifier filled in.

    `cancel = bound(Jobs.cancel)` makes `app.jobs[42].cancel(by="ann")` of
    `app.jobs.cancel(42, by="ann")`.
    """

    def __init__(self, verb: Callable[Concatenate[Any, Any, P], R]) -> None:
        self._verb = verb
        self.__doc__ = verb.__doc__

    @overload
    def __get__(self, handle: None, owner: type) -> bound[P, R]: ...
    @overload
    def __get__(self, handle: Handle[Any, Any], owner: type) -> Callable[P, R]: ...

    def __get__(self, handle: Handle[Any, Any] | None, owner: type) -> Any:
        return self if handle is None else partial(self._verb, handle._noun, handle._ref)


class iterated(Generic[P, T]):  # noqa: N801 -- reads as a decorator
    """`iterate` of a noun, made of its `list`: the results of all pages, one by one.

    It takes the same filters; `limit` is how many are read at a time.
    """

    def __init__(self, list_verb: Callable[Concatenate[Any, P], Awaitable[Page[T]]]) -> None:
        self._list = list_verb
        self.__doc__ = "Go through all pages of `list`, with the same filters: `async for`."

    @overload
    def __get__(self, noun: None, owner: type) -> iterated[P, T]: ...
    @overload
    def __get__(self, noun: object, owner: type) -> Callable[P, AsyncIterator[T]]: ...

    def __get__(self, noun: object | None, owner: type) -> Any:
        return self if noun is None else partial(_iterate, partial(self._list, noun))


async def _iterate(
    list_page: Callable[..., Awaitable[Page[T]]], /, *args: Any, **filters: Any
) -> AsyncIterator[T]:
    while True:
        page = await list_page(*args, **filters)
        for item in page:
            yield item
        if page.next is None:
            return
        filters["after"] = page.next
