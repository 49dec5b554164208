"""Attributes that are created on first use, so that an app imports only what it uses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

T = TypeVar("T")


class lazy(Generic[T]):  # noqa: N801
    """A thread-safe `cached_property`: all threads get the first value that was created.

    >>> class App:
    ...     @lazy
    ...     def jobs(self) -> list[int]:
    ...         return []
    >>> app = App()
    >>> app.jobs is app.jobs
    True
    """

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, owner: None, kind: type) -> lazy[T]: ...
    @overload
    def __get__(self, owner: object, kind: type) -> T: ...

    def __get__(self, owner: object | None, kind: type) -> lazy[T] | T:
        if owner is None:
            return self
        made = self._make(owner)
        # The attribute in the instance's dictionary is found first from now on.
        value: T = vars(owner).setdefault(self._make.__name__, made)
        return value
