"""Least-privilege roles: `duetime db roles`."""

from __future__ import annotations

import re
from importlib.resources import files

import psycopg

from duetime.errors import InvalidInput
from duetime.storage.postgres.connection import (
    check_schema_name,
    in_schema,
    make_dsn,
    translate_errors,
)

_PREFIX = re.compile(r"[a-z_][a-z0-9_]{0,39}")
_RIGHTS = (
    "To create roles a role needs CREATEROLE, and to grant rights on Duetime's tables it must be "
    "their owner. Apply it as such a role, or create the roles first and run it again as the owner."
)


class PostgresRoles:
    """What each role may do in one schema, as SQL."""

    def __init__(self, url: str, *, schema: str, prefix: str) -> None:
        if not _PREFIX.fullmatch(prefix):
            raise InvalidInput(
                f"The prefix {prefix[:60]!r} cannot be used: write 1 to 40 lower-case letters, "
                "digits and underscores, not beginning with a digit."
            )
        self._dsn = make_dsn(url)
        self._schema = check_schema_name(schema)
        self._prefix = prefix

    def script(self) -> str:
        """Return the statements; before there are tables, those that prepare for them."""
        with translate_errors(), psycopg.connect(self._dsn) as connection:
            [there] = connection.execute(
                "select to_regclass(%s) is not null", [f"{self._schema}.migration"]
            ).fetchall()[0]
        file = "grants.sql" if there else "migrator.sql"
        folder = files("duetime.storage.postgres").joinpath("roles_sql")
        return self._rename(folder.joinpath(file).read_text(encoding="utf-8"))

    def apply(self) -> None:
        """Run the statements, all or none."""
        with translate_errors(rights=_RIGHTS), psycopg.connect(self._dsn) as connection:
            connection.execute(self.script())

    def _rename(self, text: str) -> str:
        roles = re.sub(r"\bduetime_(?=[a-z]+\b)", f"{self._prefix}_", text)
        return in_schema(roles.replace('"duetime"', self._schema), self._schema)
