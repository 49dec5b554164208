"""What code registers under a name: tasks, declared schedules, handlers, templates, channels.

A name can be registered once, since only one of two could ever run. A second registration is
accepted in two cases. It is the same: the same function, or an equal value. Or its module was
executed again: by `importlib.reload`, as `__main__` and under its own name, as a cell of a
notebook; then the newer one replaces the older. Anything else is an error that names both places.
"""

from __future__ import annotations

import os
import sys
from functools import partial
from inspect import CO_NEWLOCALS, unwrap
from types import CellType, CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

from duetime.api.tasks import Task
from duetime.errors import InvalidInput

_PACKAGE = __name__.partition(".")[0]


class Registrations:
    """What an app has registered, and where."""

    def __init__(self) -> None:
        self._known: dict[str, _Registration] = {}

    def add(self, name: str, value: Any, *, advice: str, replace: bool = False) -> None:
        """Take a name, such as `task 'send'`; raise `InvalidInput` if something else has it."""
        new = _register(value)
        known = self._known.get(name)
        if known is None or replace or new.repeats(known):
            self._known[name] = new
        elif not _same(known.value, value, set()):
            places = (
                f": by {known.place} and by {new.place}"
                if known.place != new.place
                else f" by {new.place}, with different values"
            )
            raise InvalidInput(f"The {name} is registered twice{places}. {advice}")


class _Run(NamedTuple):
    """One execution of a module's code, or of a notebook's cell."""

    code: CodeType
    namespace: dict[str, Any]

    def repeats(self, other: _Run) -> bool:
        """Whether the same module, or another cell of the same notebook, was executed again."""
        if self.code is other.code and self.namespace is other.namespace:
            return False
        if _module_file(self.code, self.namespace) is None:
            return self.namespace is other.namespace
        return _file(self.code) == _file(other.code)


class _Registration(NamedTuple):
    value: Any
    place: str
    source: tuple[str, str | None] | None
    """A function's name and file, which stay as they are when its module runs again."""
    run: _Run | None

    def repeats(self, other: _Registration) -> bool:
        return (
            self.run is not None
            and other.run is not None
            and self.source == other.source
            and self.run.repeats(other.run)
        )


def _register(value: Any) -> _Registration:
    caller = _caller()
    line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    function = _innermost(value)
    if function is None:
        return _Registration(value, line, None, _run(caller))
    name = function.__qualname__
    source = (name, _module_file(function.__code__, function.__globals__))
    return _Registration(value, f"{function.__module__}.{name} ({line})", source, _run(caller))


def _caller() -> FrameType:
    """The code that registers: the nearest that is not Duetime's."""
    frame = sys._getframe(1)
    while (
        str(frame.f_globals.get("__name__")).partition(".")[0] == _PACKAGE
        and frame.f_back is not None
    ):
        frame = frame.f_back
    return frame


def _run(frame: FrameType | None) -> _Run | None:
    """The module that is being executed; None on another thread."""
    while frame is not None:
        # Neither a function nor the body of a class.
        if not frame.f_code.co_flags & CO_NEWLOCALS and frame.f_locals is frame.f_globals:
            return _Run(frame.f_code, frame.f_globals)
        frame = frame.f_back
    return None


def _file(code: CodeType) -> str:
    return os.path.realpath(code.co_filename)


def _module_file(code: CodeType, namespace: dict[str, Any]) -> str | None:
    """The file of the code's module; None if the code was typed into a console or a notebook."""
    file = namespace.get("__file__")
    return _file(code) if file and os.path.realpath(file) == _file(code) else None


def _innermost(value: Any) -> FunctionType | None:
    """The function that people wrote, without decorators."""
    while isinstance(value, MethodType | partial):
        value = value.func if isinstance(value, partial) else value.__func__
    if isinstance(value, FunctionType):
        value = unwrap(value)
    return value if isinstance(value, FunctionType) else None


def _same(one: Any, other: Any, seen: set[tuple[int, int]]) -> bool:
    """Whether it makes no difference which of the two is called."""
    if one is other or (id(one), id(other)) in seen:
        return True
    seen.add((id(one), id(other)))
    match one, other:
        case FunctionType(), FunctionType():
            return (
                one.__code__ == other.__code__
                and one.__globals__ is other.__globals__
                and _same_all(one.__closure__, other.__closure__, seen)
                and _same_all(one.__defaults__, other.__defaults__, seen)
                and _same(one.__kwdefaults__, other.__kwdefaults__, seen)
            )
        case CellType(), CellType():
            try:
                return _same(one.cell_contents, other.cell_contents, seen)
            except ValueError:
                return True  # Not filled yet: a function that refers to itself.
        case MethodType(), MethodType():
            return one.__self__ is other.__self__ and _same(one.__func__, other.__func__, seen)
        case Task(), Task():
            return _same(one.definition.function, other.definition.function, seen)
        case _:
            return _equal(one, other)


def _same_all(
    some: tuple[Any, ...] | None, others: tuple[Any, ...] | None, seen: set[tuple[int, int]]
) -> bool:
    some, others = some or (), others or ()
    return len(some) == len(others) and all(
        _same(one, other, seen) for one, other in zip(some, others, strict=True)
    )


def _equal(one: Any, other: Any) -> bool:
    try:
        return type(one) is type(other) and (one == other) is True
    except Exception:  # noqa: BLE001 Any object may be a default, and compare as it likes.
        return False
