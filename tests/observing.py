"""Follows the statements of a transaction while a store runs them."""

from __future__ import annotations

from collections.abc import Callable

from duetime.storage.store import Statement, Statements


def observed(statements: Statements, ran: Callable[[Statement], None]) -> Statements:
    """The same statements. `ran` is called after each of them, within the transaction."""
    try:
        statement = next(statements)
        while True:
            rows = yield statement
            ran(statement)
            statement = statements.send(rows)
    except StopIteration as done:
        return done.value
