"""Duetime's migrations inside a real Alembic history."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from alembic import command
from alembic.config import Config

from duetime.errors import BadDatabaseURL, SchemaMismatch
from duetime.storage.migrations import downgrade, upgrade
from tests.conftest import Backend
from tests.migrations.embedded import describe, execute_script, migrator, status, tables

ENV = '''
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
'''

REVISION = '''
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
'''

DRIVERS = {
    "postgres": ("postgresql+psycopg", "postgresql+psycopg2", "postgresql+asyncpg"),
    "sqlite": ("sqlite", "sqlite+aiosqlite"),
}


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


@pytest.fixture(
    params=[
        *(("postgres15", driver) for driver in DRIVERS["postgres"]),
        ("postgres18", "postgresql+psycopg"),
        *(("sqlite", driver) for driver in DRIVERS["sqlite"]),
    ],
    ids=lambda param: "-".join(param),
)
def driver(request: pytest.FixtureRequest) -> str:
    return str(request.param[1])


@pytest.fixture
def backend(request: pytest.FixtureRequest) -> None:
    raise NotImplementedError
