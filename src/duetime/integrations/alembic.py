"""Duetime's tables in your Alembic history.

In a revision, with the version of Duetime's schema that it leads to:

    from duetime.integrations import alembic as duetime

    def upgrade() -> None:
        duetime.upgrade(op, to=15)

    def downgrade() -> None:
        duetime.downgrade(op, to=0)

It happens in the revision's transaction, and `duetime db status` knows of it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from duetime.integrations.embedding import EmbeddedSchema
from duetime.storage import transaction


def upgrade(
    op: Any,
    to: int | None = None,
    *,
    since: int = 0,
    schema: str = "duetime",
    prefix: str = "duetime_",
) -> None:
    """Bring Duetime's schema to version `to`, by default the latest of the installed package.

    What is there already is left alone. `since` counts only for `alembic upgrade --sql`, which
    cannot ask the database: the version that an earlier revision has led to.
    """
    ours = EmbeddedSchema(op.get_context().dialect.name, schema=schema, prefix=prefix)
    if op.get_context().as_sql:
        _write(op, ours.script_upgrade(since, to))
    else:
        transaction.run(op.get_bind(), ours.upgrade(to), placeholder=ours.placeholder)


def downgrade(
    op: Any,
    to: int = 0,
    *,
    since: int | None = None,
    schema: str = "duetime",
    prefix: str = "duetime_",
) -> None:
    """Take Duetime's schema back to version `to`; 0 removes its tables and all jobs.

    `since` counts only for `alembic downgrade --sql`: the version that is in the database, by
    default the latest.
    """
    ours = EmbeddedSchema(op.get_context().dialect.name, schema=schema, prefix=prefix)
    if op.get_context().as_sql:
        _write(op, ours.script_downgrade(since, to))
    else:
        transaction.run(op.get_bind(), ours.downgrade(to), placeholder=ours.placeholder)


def _write(op: Any, statements: Iterable[str]) -> None:
    # Not op.execute: it would read colons in the SQL as parameters.
    for sql in statements:
        op.get_context().impl.static_output(f"{sql};")
