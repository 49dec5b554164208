-- Which version of the tables and which functions are here, for roles that may not read the tables.
create or replace function duetime.installed(out version integer, out functions text)
    language sql stable security definer set search_path = pg_catalog, pg_temp as $$
    select (select coalesce(max(m.version), 0) from duetime.migration as m), i.functions
    from duetime.installation as i
$$;
