-- There are no tables yet. The role that owns the schema makes them (`duetime db init`) and changes
-- them, and needs no other right in the database.
do $$ begin
    if not exists (select from pg_roles where rolname = 'duetime_migrator') then
        create role duetime_migrator nologin;
    end if;
end $$;
create schema if not exists "duetime" authorization duetime_migrator;
