"""Duetime's migrations inside a real Django project, driven by its manage.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from duetime.storage.migrations import downgrade, upgrade
from tests.conftest import Backend
from tests.migrations.embedded import (
    describe,
    execute_script,
    keep_apart,
    migrator,
    status,
    tables,
)

MANAGE = """
import os, sys
from django.core.management import execute_from_command_line
os.environ["DJANGO_SETTINGS_MODULE"] = "settings"
execute_from_command_line(sys.argv)
"""

SETTINGS = """
INSTALLED_APPS = ["shop"]
DATABASES = {{"default": {database!r}, "other": {other!r}}}
DATABASE_ROUTERS = ["settings.Router"]
USE_TZ = True

class Router:
    def allow_migrate(self, db, app_label, **hints):
        return db == "default"
"""

MIGRATION = """
from django.db import migrations, models
from duetime.integrations.django import DuetimeUpgrade

class Migration(migrations.Migration):
    atomic = {atomic}
    dependencies = {dependencies}
    operations = [
        migrations.CreateModel("Ticket{number}", [("id", models.AutoField(primary_key=True))]),
        {operations},
    ]
"""


class Project:
    """A user's Django project with one app."""

    def __init__(self, root: Path, backend: Backend) -> None:
        self.root = root
        self.backend = backend
        self._migrations = 0
        (root / "shop" / "migrations").mkdir(parents=True)
        (root / "shop" / "__init__.py").touch()
        (root / "shop" / "migrations" / "__init__.py").touch()
        (root / "manage.py").write_text(MANAGE)
        other = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(root / "other.db")}
        (root / "settings.py").write_text(
            SETTINGS.format(database=django_database(backend), other=other)
        )

    def add(self, operations: str, *, atomic: bool = True) -> None:
        """Add a migration with a model of the user's, and these operations."""
        self._migrations += 1
        number = self._migrations
        (self.root / "shop" / "migrations" / f"{number:04}_step.py").write_text(
            MIGRATION.format(
                atomic=atomic,
                dependencies=[] if number == 1 else [("shop", f"{number - 1:04}_step")],
                number=number,
                operations=operations,
            )
        )

    def manage(self, *arguments: str) -> str:
        """What `python manage.py …` prints; raises `CalledProcessError`."""
        root = Path(__file__).parents[2]
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments],
            cwd=self.root,
            env=os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"},
            check=True,
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.stdout


def django_database(backend: Backend) -> dict[str, object]:
    if not backend.is_postgres:
        path = backend.url.removeprefix("sqlite:///")
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": path}
    parts = urlsplit(backend.url)
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": parts.path[1:],
        "USER": parts.username,
        "HOST": parts.hostname,
        "PORT": parts.port,
    }


@pytest.fixture
def project(tmp_path: Path, backend: Backend) -> Project:
    keep_apart(backend)
    return Project(tmp_path / "project", backend)


def test_migrate_gives_what_db_upgrade_gives(project: Project) -> None:
    project.add("DuetimeUpgrade()")
    assert "OK" in project.manage("migrate")
    embedded = describe(project.backend)

    assert "shop_ticket1" in tables(project.backend)
    downgrade(migrator(project.backend), 0)
    upgrade(migrator(project.backend))
    assert embedded == describe(project.backend)
    assert status(project.backend).current


def test_backwards_removes_all(project: Project) -> None:
    project.add("DuetimeUpgrade()")
    project.manage("migrate")
    project.manage("migrate", "shop", "zero")

    assert describe(project.backend) == []
    assert status(project.backend).version == 0
    assert tables(project.backend) == ["django_migrations"]


@pytest.mark.usefixtures("second_migration")
def test_migrations_go_up_and_down_step_by_step(project: Project) -> None:
    settings = project.root / "settings.py"
    settings.write_text(
        "from tests.migrations import second\nsecond.install()" + settings.read_text()
    )
    project.add("DuetimeUpgrade(to=1)")
    project.add("DuetimeUpgrade(to=2, since=1)")

    project.manage("migrate", "shop", "0001")
    assert status(project.backend).version == 1
    project.manage("migrate", "shop", "0002")
    assert status(project.backend).version == 2
    project.manage("migrate", "shop", "0001")
    assert status(project.backend).version == 1


def test_failed_migration_leaves_nothing(project: Project) -> None:
    project.add("DuetimeUpgrade(), migrations.RunSQL('select missing from nowhere')")

    with pytest.raises(subprocess.CalledProcessError) as failure:
        project.manage("migrate")
    assert "nowhere" in failure.value.stderr
    assert describe(project.backend) == []
    assert "shop_ticket1" not in tables(project.backend)


def test_without_django_s_transaction_it_has_its_own(project: Project) -> None:
    project.add("DuetimeUpgrade()", atomic=False)
    project.manage("migrate")

    assert status(project.backend).current


def test_another_schema(project: Project) -> None:
    project.add("DuetimeUpgrade(schema='jobs', prefix='jobs_')")
    project.manage("migrate")

    assert status(project.backend, "jobs").current
    assert describe(project.backend, "duetime") == []


def test_router_keeps_it_out_of_other_databases(project: Project) -> None:
    project.add("DuetimeUpgrade()")
    project.manage("migrate", "--database", "other")
    other = Backend("sqlite", f"sqlite:///{project.root / 'other.db'}")

    assert describe(other) == []


def test_sqlmigrate_gives_what_db_upgrade_gives(project: Project) -> None:
    project.add("DuetimeUpgrade()")
    forwards = project.manage("sqlmigrate", "shop", "0001")
    backwards = project.manage("sqlmigrate", "shop", "0001", "--backwards")

    execute_script(project.backend, forwards)
    embedded = describe(project.backend)
    execute_script(project.backend, backwards)
    assert describe(project.backend) == []
    upgrade(migrator(project.backend))
    assert embedded == describe(project.backend)
