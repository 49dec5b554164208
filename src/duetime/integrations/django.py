"""Duetime's tables in your Django migrations.

In a migration, with the version of Duetime's schema that it leads to:

    from duetime.integrations.django import DuetimeUpgrade

    class Migration(migrations.Migration):
        operations = [DuetimeUpgrade(to=15)]

It happens in the migration's transaction, and `duetime db status` knows of it.
"""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.migrations.operations.base import Operation

from duetime.integrations.embedding import EmbeddedSchema
from duetime.storage import transaction


class DuetimeUpgrade(Operation):
    """Bring Duetime's schema to version `to`, by default the latest of the installed package.

    What is there already is left alone. Undone, it goes back to `since`: the version that an
    earlier migration has led to; 0 removes its tables and all jobs.
    """

    reduces_to_sql = True

    def __init__(
        self,
        to: int | None = None,
        since: int = 0,
        schema: str = "duetime",
        prefix: str = "duetime_",
    ) -> None:
        self.to = to
        self.since = since
        self.schema = schema
        self.prefix = prefix

    def state_forwards(self, app_label: str, state: Any) -> None:
        """No model of Django's is changed."""

    def database_forwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._run(app_label, schema_editor, forwards=True)

    def database_backwards(
        self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any
    ) -> None:
        self._run(app_label, schema_editor, forwards=False)

    def describe(self) -> str:
        return f"Bring Duetime's schema to version {self.to or 'latest'}"

    def _run(self, app_label: str, schema_editor: Any, *, forwards: bool) -> None:
        connection = schema_editor.connection
        if not router.allow_migrate(connection.alias, app_label):
            return
        ours = EmbeddedSchema(connection.vendor, schema=self.schema, prefix=self.prefix)
        if schema_editor.collect_sql:
            for sql in (
                ours.script_upgrade(self.since, self.to)
                if forwards
                else ours.script_downgrade(self.to, self.since)
            ):
                schema_editor.execute(sql, params=None)
            return
        todo = ours.upgrade(self.to) if forwards else ours.downgrade(self.since)
        transaction.run(connection, todo, placeholder=ours.placeholder)
