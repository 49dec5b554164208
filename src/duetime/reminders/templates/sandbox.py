"""What a template may do.

The language is a part of Jinja2: text, values, `if`, `for`, and filters and tests from a short
list. Attributes are items of plain data, never Python's; nothing can be called but `range`; nothing
can be assigned; lists cannot be multiplied, nor written as text. So a value cannot grow much faster
than the source, and the steps that are left are counted.
"""

from __future__ import annotations

import operator
import traceback
from collections.abc import Callable, Mapping
from datetime import date, datetime, timedelta
from typing import Any, cast

import jinja2
from jinja2 import nodes
from jinja2.runtime import LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from duetime.errors import InvalidInput
from duetime.reminders.templates.filters import (
    FILTERS,
    TESTS,
    Rendering,
    is_number,
    kind_of,
    limited_range,
    need,
    rendering,
    spend,
    write,
)
from duetime.reminders.templates.limits import MAX_TEXT_LENGTH, TemplateError

MAX_NUMBER = 10**18
MAX_LOOP_DEPTH = 3
MAX_LIST_LENGTH = 50

_NODES = (
    nodes.Template, nodes.Output, nodes.If, nodes.For,
    nodes.TemplateData, nodes.Const, nodes.Name, nodes.List, nodes.Tuple, nodes.CondExpr,
    nodes.Filter, nodes.Test, nodes.Keyword, nodes.Call, nodes.Getattr, nodes.Getitem, nodes.Slice,
    nodes.Concat, nodes.Compare, nodes.Operand, nodes.And, nodes.Or, nodes.Not, nodes.Neg,
    nodes.Pos, nodes.Add, nodes.Sub, nodes.Mul, nodes.Div, nodes.FloorDiv, nodes.Mod,
)  # fmt: skip
_ATTRIBUTES: dict[type, tuple[str, ...]] = {
    datetime: ("year", "month", "day", "hour", "minute", "second"),
    date: ("year", "month", "day"),
    timedelta: ("days", "seconds"),
    LoopContext: ("first", "index", "index0", "last", "length", "revindex"),
}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_FAILURES = (
    jinja2.TemplateError,
    InvalidInput,
    TypeError,
    ValueError,
    ArithmeticError,
    LookupError,
    AttributeError,
    SyntaxError,
    RecursionError,
    MemoryError,
)
_TAGS = {
    "Assign": "set",
    "AssignBlock": "set",
    "CallBlock": "call",
    "FilterBlock": "filter",
    "FromImport": "from",
}


class Program:
    """A template that was read and checked."""

    def __init__(self, template: jinja2.Template) -> None:
        self._template = template

    def run(self, values: Mapping[str, Any], *, now: datetime, tz: str) -> str:
        """Fill it within the limits."""
        token = rendering.set(Rendering(now, tz))
        try:
            return self._collect(values)
        except _FAILURES as error:
            raise _explain(error) from error
        finally:
            rendering.reset(token)

    def _collect(self, values: Mapping[str, Any]) -> str:
        parts: list[str] = []
        size = 0
        for part in self._template.generate(values):
            size += len(part)
            if size > MAX_TEXT_LENGTH:
                raise TemplateError(f"The text is longer than {MAX_TEXT_LENGTH:,} characters.")
            parts.append(part)
        return "".join(parts)


def compile_source(source: str) -> Program:
    """Read the source; raise `TemplateError` with the line of what is not allowed."""
    # Jinja2 computes constants while it compiles: under the same limits.
    token = rendering.set(Rendering(None, "UTC"))
    try:
        tree = _Reader().visit(_environment.parse(source))
        code = _environment.compile(tree)
    except _FAILURES as error:
        raise _explain(error) from error
    finally:
        rendering.reset(token)
    return Program(jinja2.Template.from_code(_environment, code, dict(_environment.globals)))


class _Reader(NodeTransformer):
    """Refuses what is not in the language, and puts counters where Jinja2 has none."""

    def __init__(self) -> None:
        self._loops = 0

    def generic_visit(self, node: nodes.Node, *_: Any, **__: Any) -> nodes.Node:
        self._check(node)
        inside = isinstance(node, nodes.For)
        self._loops += inside
        node = super().generic_visit(node)
        self._loops -= inside
        match node:
            case nodes.For():
                node.iter = _filter("each", node.iter)
            case nodes.Concat():
                return _filter("join", nodes.List(node.nodes, lineno=node.lineno))
            case nodes.Compare():
                node.expr = _filter("weighed", node.expr)
                for operand in node.ops:
                    operand.expr = _filter("weighed", operand.expr)
                return _filter("value", node)
            case nodes.Getitem(arg=nodes.Slice()):
                return _filter("value", node)
        return node

    def _check(self, node: nodes.Node) -> None:
        refused = None
        match node:
            case nodes.For(recursive=True):
                refused = "Recursive loops are not allowed."
            case nodes.For() if self._loops == MAX_LOOP_DEPTH:
                refused = f"Loops can be nested at most {MAX_LOOP_DEPTH} deep."
            case nodes.Call(
                node=nodes.Name(name="range"), kwargs=[], dyn_args=None, dyn_kwargs=None
            ):
                pass
            case nodes.Call():
                refused = "Only range() can be called. Use filters instead: {{ name | upper }}."
            case nodes.List() | nodes.Tuple() if len(node.items) > MAX_LIST_LENGTH:
                refused = f"A list must have at most {MAX_LIST_LENGTH} items."
            case _ if not isinstance(node, _NODES):
                name = type(node).__name__
                refused = f"{_TAGS.get(name, name.lower())!r} is not allowed in message templates."
        if refused is not None:
            raise TemplateError(refused, line=node.lineno)


class _Environment(ImmutableSandboxedEnvironment):
    """Looks into plain data only, and computes with plain values only."""

    intercepted_binops = frozenset(_OPERATORS)

    def getattr(self, obj: Any, attribute: str) -> Any:
        return self.getitem(obj, attribute)

    def getitem(self, obj: Any, argument: Any) -> Any:
        spend()
        need(obj)
        try:
            if isinstance(obj, dict) or (
                isinstance(obj, list | tuple | str) and isinstance(argument, int)
            ):
                return obj[argument]
        except (LookupError, TypeError):
            pass
        if argument in _ATTRIBUTES.get(type(obj), ()):
            return getattr(obj, argument)
        return self.undefined(f"there is no {argument!r} in {kind_of(obj)}", obj, argument)

    def is_safe_callable(self, obj: Any) -> bool:
        return obj is limited_range

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        need(left)
        need(right)
        numbers = is_number(left) and is_number(right)
        texts = isinstance(left, str) and isinstance(right, str) and operator == "+"
        times = isinstance(left, date | timedelta) and isinstance(right, date | timedelta)
        if not (numbers or texts or (times and operator in "+-")):
            raise TemplateError(
                f"{kind_of(left)} {operator} {kind_of(right)} is not supported. Use arithmetic on "
                "numbers only; text can only be concatenated."
            )
        result = _OPERATORS[operator](left, right)
        if isinstance(result, int) and abs(result) > MAX_NUMBER:
            raise TemplateError("A number is too large.")
        spend(result)
        return result


def _filter(name: str, value: nodes.Node) -> nodes.Filter:
    return nodes.Filter(cast("nodes.Expr", value), name, [], [], None, None, lineno=value.lineno)


def _explain(error: Exception) -> TemplateError:
    if isinstance(error, TemplateError) and error.line is not None:
        return error
    if isinstance(error, jinja2.TemplateSyntaxError):
        return TemplateError(str(error.message), line=error.lineno)
    if isinstance(error, RecursionError | MemoryError | SyntaxError):
        return TemplateError("The template is nested too deeply.")
    if isinstance(error, jinja2.exceptions.SecurityError):
        # Its own words show the object.
        error = TemplateError("That cannot be called.").with_traceback(error.__traceback__)
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == "<template>"
    ]
    return TemplateError(str(error) or type(error).__name__, line=lines[-1] if lines else None)


def _make_environment() -> _Environment:
    environment = _Environment(
        autoescape=False,
        undefined=jinja2.StrictUndefined,
        finalize=write,
        trim_blocks=True,
        lstrip_blocks=True,
        cache_size=0,
    )
    environment.globals = {"range": limited_range}
    environment.filters = dict(FILTERS)
    environment.tests = dict(TESTS)
    return environment


_environment = _make_environment()
