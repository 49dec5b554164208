"""What a handler's source says before it ever runs."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from duetime.errors import InvalidInput

_BLOCKS = frozenset({"transaction", "transaction_sync"})
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def refuse_return_in_transaction(
    function: Callable[..., Any], context_name: str | None, *, what: str
) -> None:
    """Raise `InvalidInput` if a handler returns a value inside `ctx.transaction()`.

    The block commits and completes the job before it is known what is returned: a result would be
    lost, and a `Retry` without effect. A function without source cannot be checked.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    if context_name is None or code is None or _BLOCKS.isdisjoint(code.co_names):
        return
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return
    for block in ast.walk(tree):
        if isinstance(block, ast.With | ast.AsyncWith) and _is_transaction(block, context_name):
            for line in _returns(block.body):
                raise InvalidInput(
                    f"{what} returns a value inside {context_name}.transaction() "
                    f"({code.co_filename}:{first + line - 1}). The block commits and completes the "
                    "job before the value is known, so it would be lost. To roll back, raise an "
                    "outcome such as Retry in the block. To store a result, call "
                    f"{context_name}.complete(result, tx=connection) in the block."
                )


def _is_transaction(block: ast.With | ast.AsyncWith, context_name: str) -> bool:
    return any(
        isinstance(call := item.context_expr, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr in _BLOCKS
        and isinstance(call.func.value, ast.Name)
        and call.func.value.id == context_name
        for item in block.items
    )


def _returns(body: list[ast.stmt]) -> Iterator[int]:
    """The lines on which a value is returned; functions defined inside are ignored."""
    nodes: list[ast.AST] = list(body)
    while nodes:
        node = nodes.pop(0)
        if isinstance(node, ast.Return) and not _is_none(node.value):
            yield node.lineno
        if not isinstance(node, _SCOPES):
            nodes += ast.iter_child_nodes(node)


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)
