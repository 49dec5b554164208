-- Statements about the schema itself.

-- name: migration_exists
select count(*) from sqlite_schema where type = 'table' and name = 'duetime_migration';

-- name: create_migration
create table if not exists duetime_migration (
    version    integer primary key,
    name       text not null,
    applied_at integer not null
) strict;

-- name: applied
select coalesce(max(version), 0) from duetime_migration;

-- name: record_migration
insert into duetime_migration (version, name, applied_at) values (:version, :name, :now);

-- name: forget_migration
delete from duetime_migration where version = :version;

-- name: drop_migration
drop table duetime_migration;

-- name: installation
select id from duetime_installation;
