"""Duetime's migrations inside a real Alembic history."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from duetime.errors import InvalidDatabaseURL, SchemaMismatch
from duetime.storage.migrations import downgrade, upgrade
from tests.conftest import Backend
from tests.migrations.embedded import describe, execute_script, keep_apart, migrator, status, tables

ENV = """
import asyncio
from alembic import context
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import create_async_engine

url = context.config.get_main_option("sqlalchemy.url")

def migrate(connection):
    context.configure(connection=connection)
    with context.begin_transaction():
        context.run_migrations()

async def migrate_async():
    engine = create_async_engine(url)
    async with engine.connect() as connection:
        await connection.run_sync(migrate)
        await connection.commit()
    await engine.dispose()

if context.is_offline_mode():
    context.configure(url=url, literal_binds=True)
    with context.begin_transaction():
        context.run_migrations()
elif "async" in url or "aio" in url:
    asyncio.run(migrate_async())
else:
    with create_engine(url).connect() as connection:
        migrate(connection)
"""

REVISION = """
import sqlalchemy as sa
from alembic import op
from duetime.integrations import alembic as duetime

revision = "{revision}"
down_revision = {down_revision}

def upgrade():
    op.create_table("{table}", sa.Column("id", sa.Integer))
    {upgrade}

def downgrade():
    {downgrade}
    op.drop_table("{table}")
"""

pytestmark = pytest.mark.parametrize(
    ("backend", "driver"),
    [
        ("postgres15", "postgresql+psycopg"),
        ("postgres15", "postgresql+psycopg2"),
        ("postgres15", "postgresql+asyncpg"),
        ("postgres18", "postgresql+psycopg"),
        ("sqlite", "sqlite"),
        ("sqlite", "sqlite+aiosqlite"),
    ],
    indirect=["backend"],
)


class Project:
    """A user's directory with Alembic in it."""

    def __init__(self, root: Path, backend: Backend, driver: str) -> None:
        self.root = root
        self.backend = backend
        (root / "versions").mkdir(parents=True)
        (root / "env.py").write_text(ENV)
        self.output = io.StringIO()
        self.config = Config(output_buffer=self.output)
        self.config.set_main_option("script_location", str(root))
        self.config.set_main_option("path_separator", "os")
        url = f"{driver}:{backend.url.partition(':')[2]}"
        self.config.set_main_option("sqlalchemy.url", url)
        self._revisions = 0

    def add(self, upgrade: str, downgrade: str = "duetime.downgrade(op, to=0)") -> None:
        """Add a revision with a table of the user's, and these calls."""
        self._revisions += 1
        number = self._revisions
        (self.root / "versions" / f"{number}.py").write_text(
            REVISION.format(
                revision=number,
                down_revision=None if number == 1 else f"'{number - 1}'",
                table=f"ticket{number}",
                upgrade=upgrade,
                downgrade=downgrade,
            )
        )

    def upgrade(self, to: str = "head") -> None:
        command.upgrade(self.config, to)

    def downgrade(self, to: str = "base") -> None:
        command.downgrade(self.config, to)

    def script(self, action: Callable[..., None], revision: str) -> str:
        """What `--sql` prints."""
        self.output.truncate(0)
        self.output.seek(0)
        action(self.config, revision, sql=True)
        return self.output.getvalue()


@pytest.fixture
def project(tmp_path: Path, backend: Backend, driver: str) -> Project:
    keep_apart(backend)
    return Project(tmp_path / "alembic", backend, driver)


def test_upgrade_gives_what_db_upgrade_gives(project: Project) -> None:
    project.add("duetime.upgrade(op)")
    project.upgrade()
    embedded = describe(project.backend)

    downgrade(migrator(project.backend), 0)
    upgrade(migrator(project.backend))
    assert embedded == describe(project.backend)
    assert status(project.backend).current


def test_downgrade_removes_all(project: Project) -> None:
    project.add("duetime.upgrade(op)")
    project.upgrade()
    project.downgrade()

    assert describe(project.backend) == []
    assert status(project.backend).version == 0
    assert tables(project.backend) == ["alembic_version"]


@pytest.mark.usefixtures("second_migration")
def test_revisions_go_up_and_down_step_by_step(project: Project) -> None:
    project.add("duetime.upgrade(op, to=1)")
    project.add("duetime.upgrade(op, to=2)", "duetime.downgrade(op, to=1)")

    project.upgrade("1")
    assert status(project.backend).version == 1
    project.upgrade("2")
    assert status(project.backend).version == 2
    project.downgrade("1")
    assert status(project.backend).version == 1
    project.upgrade("2")
    assert status(project.backend).version == 2


def test_failed_revision_leaves_nothing(project: Project) -> None:
    project.add("duetime.upgrade(op); op.execute('select missing from nowhere')")

    with pytest.raises(Exception, match="nowhere"):
        project.upgrade()
    assert describe(project.backend) == []


def test_revision_after_db_upgrade_changes_nothing(project: Project) -> None:
    upgrade(migrator(project.backend))
    before = describe(project.backend)
    project.add("duetime.upgrade(op)")
    project.upgrade()

    assert describe(project.backend) == before
    assert "ticket1" in tables(project.backend)


def test_newer_schema_is_refused(project: Project) -> None:
    upgrade(migrator(project.backend))
    table = "duetime.migration" if project.backend.is_postgres else "duetime_migration"
    execute_script(project.backend, f"update {table} set version = 99 where version = 1")
    before = describe(project.backend)
    project.add("duetime.upgrade(op)")

    with pytest.raises(SchemaMismatch, match="99"):
        project.upgrade()
    assert describe(project.backend) == before


def test_another_schema(project: Project) -> None:
    names = "schema='jobs', prefix='jobs_'"
    project.add(f"duetime.upgrade(op, {names})", f"duetime.downgrade(op, {names})")
    project.upgrade()

    assert status(project.backend, "jobs").current
    assert describe(project.backend, "duetime") == []
    project.downgrade()
    assert describe(project.backend, "jobs") == []


def test_reserved_schema_is_refused(project: Project) -> None:
    project.add("duetime.upgrade(op, schema='select', prefix='sqlite_')")

    with pytest.raises(InvalidDatabaseURL):
        project.upgrade()


def test_autocommit_block(project: Project) -> None:
    project.add("with op.get_context().autocommit_block(): duetime.upgrade(op)")
    project.upgrade()

    assert status(project.backend).current
    assert "ticket1" in tables(project.backend)


@pytest.mark.usefixtures("second_migration")
def test_sql_script_gives_what_db_upgrade_gives(project: Project) -> None:
    project.add("duetime.upgrade(op, to=1)")
    project.add("duetime.upgrade(op, since=1)", "duetime.downgrade(op, to=1)")
    execute_script(project.backend, project.script(command.upgrade, "head"))
    embedded = describe(project.backend)
    assert status(project.backend).current

    project.upgrade()
    assert describe(project.backend) == embedded
    execute_script(project.backend, project.script(command.downgrade, "2:1"))
    assert status(project.backend).version == 1
