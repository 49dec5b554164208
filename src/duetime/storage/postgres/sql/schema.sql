-- Statements about the schema itself.

-- name: is_reserved
select word from pg_get_keywords() where word = %(schema)s and catcode in ('R', 'T');

-- name: lock_schema
select pg_advisory_xact_lock(hashtext('duetime migrations'), hashtext(%(schema)s));

-- name: schema_exists
select nspname from pg_namespace where nspname = %(schema)s;

-- name: create_schema
create schema duetime;

-- name: migration_exists
select to_regclass('duetime.migration') is not null;

-- name: create_migration
create table if not exists duetime.migration (
    version integer primary key,
    name text not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- name: is_readable
-- Whether this role may read the tables about the schema; otherwise it calls a function.
select has_table_privilege('duetime.migration', 'select');

-- name: ask_installed
select version, functions from duetime.installed();

-- name: applied
select coalesce(max(version), 0) from duetime.migration;

-- name: record_migration
insert into duetime.migration (version, name) values (%(version)s, %(name)s);

-- name: installed_functions
select functions from duetime.installation;

-- name: record_functions
update duetime.installation set functions = %(digest)s;

-- name: forget_migration
delete from duetime.migration where version = %(version)s;

-- name: drop_migration
drop table duetime.migration;

-- name: installation
select id::text from duetime.installation;
