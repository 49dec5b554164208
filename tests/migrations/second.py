"""A second migration, of the tests' own: Duetime has one, and the machinery is for many."""

from __future__ import annotations

from typing import Any

from duetime.storage.migrations import Migration
from duetime.storage.postgres import migrator as postgres
from duetime.storage.sqlite import migrator as sqlite

IN_POSTGRES = Migration(
    2,
    "notes",
    up="""
create table duetime.note (job_id bigint primary key, text text not null);
insert into duetime.note (job_id, text) select id, 'task ' || task from duetime.job;
alter table duetime.job add column noted boolean not null default true;
""",
    down="alter table duetime.job drop column noted; drop table duetime.note;",
)
IN_SQLITE = Migration(
    2,
    "notes",
    up="""
create table duetime_note (job_id integer primary key, text text not null) strict;
insert into duetime_note (job_id, text) select id, 'task ' || task from duetime_job;
alter table duetime_job add column noted integer not null default 1;
""",
    down="alter table duetime_job drop column noted;\ndrop table duetime_note;\n",
)


def install(set_attribute: Any = setattr) -> None:
    """Make this process one of a later release of Duetime, which adds a table and a column."""
    for module, migration in ((postgres, IN_POSTGRES), (sqlite, IN_SQLITE)):
        load = module.load_migrations

        def load_two(package: str, rename: Any, load: Any = load, second: Any = migration) -> Any:
            up, down = rename(second.up), rename(second.down)
            return [*load(package, rename), Migration(2, second.name, up, down)]

        set_attribute(module, "load_migrations", load_two)
