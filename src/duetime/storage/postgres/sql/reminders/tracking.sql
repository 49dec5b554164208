-- Statements of tracked tables. Those with {places} are written for one table: `triggers.py` fills
-- the places, and they run without parameters.

-- name: track_patience
-- A user's write may wait for a lock of ours: we give up first, and try again.
-- Names are PostgreSQL's own unless their schema is said: so it is in the trigger, which runs with the
-- rights of the table's owner.
select set_config('lock_timeout', '500ms', true), set_config('search_path', 'pg_catalog, pg_temp', true),
    set_config('duetime.arm_later', coalesce(%s::json ->> 'arm_later', ''), true);

-- name: track_table
-- A table, whether we may change it, its columns, the sets of columns that are unique, and the table that it is a
-- partition of. If a
-- role has the name of our schema, that is on its path: a table of the user's comes first.
with found as (
    select coalesce(
        (select c.oid from unnest(current_schemas(false)) with ordinality as s(name, place)
         join pg_namespace as n on n.nspname = s.name join pg_class as c on c.relnamespace = n.oid
         where c.relname in (g.given, lower(g.given)) and c.relkind in ('r', 'p')
         order by n.oid = (select relnamespace from pg_class where oid = 'duetime.job'::regclass),
             s.place, c.relname <> g.given limit 1),
        -- What is not a name as in SQL would be an error: there is no such table.
        case when g.given ~ '^("([^"]|"")+"|[^".[:space:]]+)([.]("([^"]|"")+"|[^".[:space:]]+))?$'
            then to_regclass(g.given)::oid end,
        to_regclass(quote_ident(g.given))::oid) as oid
    from (select %s::json ->> 'table' as given) as g
)
select format('%%I.%%I', n.nspname, c.relname), quote_ident(n.nspname), c.relkind::text,
    pg_has_role(c.relowner, 'USAGE'),
    (select json_agg(json_build_object('name', a.attname,
                                       'type', format_type(a.atttypid, a.atttypmod))
                     order by a.attnum)::text
     from pg_attribute as a where a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped),
    (select coalesce(json_agg(k.names), '[]')::text
     from (select (select json_agg(a.attname) from pg_attribute as a
                   where a.attrelid = c.oid
                     and a.attnum = any ((i.indkey::int2[])[0 : i.indnkeyatts - 1])) as names
           from pg_index as i
           where i.indrelid = c.oid and i.indisunique and i.indisvalid and i.indimmediate
             and i.indpred is null and 0 <> all (i.indkey::int2[])) as k),
    (select format('%%I.%%I', o.nspname, p.relname)
     from pg_inherits as i join pg_class as p on p.oid = i.inhparent
     join pg_namespace as o on o.oid = p.relnamespace
     where i.inhrelid = c.oid and c.relispartition)
from found as f
join pg_class as c on c.oid = f.oid join pg_namespace as n on n.oid = c.relnamespace;

-- name: tracked_put
select duetime.track_define(g.name, g."table", g.definition, g.actor)
from json_to_record(%s::json) as g(name text, "table" text, definition json, actor text);

-- name: tracked_forget
select duetime.track_forget(g.name, g.actor)
from json_to_record(%s::json) as g(name text, actor text);

-- name: tracked_find
select t.name, t.definition::text from duetime.tracked as t
cross join (select %s::json ->> 'name' as name) as g
where g.name is null or t.name = g.name order by t.name;

-- name: tracked_look
select t.name, t.definition::text, t.created_at, n.subjects,
    n.problems + c.problems + (t.problem is not null)::integer,
    coalesce(t.problem, (
        select json_build_object('code', 'row_of_subject', 'facts',
                                 json_build_object('subject', s.ref, 'why', s.problem))
        from duetime.subject as s where s.ref = n.example), (
        select json_build_object('code', 'row_of_scope', 'facts',
                                 json_build_object('scope', s.ref, 'why', s.problem))
        from duetime.tracked_scope as s where s.ref = c.example))::text, c.scopes
from json_to_record(%s::json) as g(name text, "after" text, "limit" integer)
cross join lateral (
    select * from duetime.tracked as t
    where t.name > g."after" and (g.name is null or t.name = g.name)
    order by t.name limit g."limit"
) as t
cross join lateral (
    select count(*) as subjects, count(s.problem) as problems,
        min(s.ref) filter (where s.problem is not null) as example
    from duetime.subject as s where s.tracked = t.name
) as n
cross join lateral (
    select count(*) as scopes, count(s.problem) as problems,
        min(s.ref) filter (where s.problem is not null) as example
    from duetime.tracked_scope as s where s.track = t.name
) as c
order by t.name;

-- name: track_clear
select duetime.track_clear(g.name, g.most)
from json_to_record(%s::json) as g(name text, most integer);

-- name: track_count
select count(*) from {table};

-- name: track_state
-- How many of a track's triggers are there and enabled; a column of its that is gone.
with input as (
    select %s::json as doc
), trigger as (
    select t.tgrelid, t.tgenabled from pg_trigger as t, input as i
    where t.tgname in (i.doc ->> 'name' || '_insert', i.doc ->> 'name' || '_update',
                       i.doc ->> 'name' || '_delete', i.doc ->> 'name' || '_truncate')
)
select (select count(*) from trigger where tgenabled in ('O', 'A')),
    (select c.name from input as i, json_array_elements_text(i.doc -> 'columns') as c(name)
     where exists (select from trigger)
       and not exists (select from pg_attribute as a join trigger as t on t.tgrelid = a.attrelid
                       where a.attname = c.name and not a.attisdropped)
     limit 1);

-- name: track_leftovers
-- What removes the triggers and the function of a track, wherever the table is now.
with input as (
    select %s::json ->> 'name' as name
)
select format('drop trigger if exists %%I on %%s', t.tgname, t.tgrelid::regclass)
from pg_trigger as t, input as g
where t.tgname in (g.name || '_insert', g.name || '_update', g.name || '_delete',
                   g.name || '_truncate')
union all
select format('drop function if exists %%s', p.oid::regprocedure)
from pg_proc as p, input as g
where p.proname = g.name and p.prorettype = 'trigger'::regtype;

-- name: track_check
select {columns}
from (select * from {table}) as duetime_new where (
    {when}
) limit 0;

-- name: track_function
create or replace function {function}() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $duetime$
#variable_conflict use_column
declare
    given record;
    gone text[];
begin
    if tg_op = 'INSERT' then
        select array_agg(n.ref) as refs, array_agg(n.scope) as scopes, array_agg(n.due) as dues,
            array_agg(n.local_due) as local_dues, array_agg(n.zone) as zones,
            array_agg(n.recipients) as recipients, array_agg(n.data) as data,
            array_agg(n.rules) as rules, array_agg(n.open) as opens, null::text[] as gone
        into given
        from (select {columns}
              from duetime_new) as n
        where n.open and n.ref is not null;
    elsif tg_op = 'UPDATE' then
        with o as materialized (
            select {columns}
            from duetime_old
        ), n as materialized (
            select {columns}
            from duetime_new
        )
        select array_agg(c.ref) as refs, array_agg(c.scope) as scopes, array_agg(c.due) as dues,
            array_agg(c.local_due) as local_dues, array_agg(c.zone) as zones,
            array_agg(c.recipients) as recipients, array_agg(c.data) as data,
            array_agg(c.rules) as rules, array_agg(c.open) as opens,
            (select array_agg(g.ref) from (select ref from o except select ref from n) as g
             where g.ref is not null) as gone
        into given
        from (select * from n except select * from o) as c
        where c.ref is not null;
    elsif tg_op = 'DELETE' then
        select null::text[] as refs, null::text[] as scopes, null::timestamptz[] as dues,
            null::timestamp[] as local_dues, null::text[] as zones, null::jsonb[] as recipients,
            null::jsonb[] as data, null::jsonb[] as rules, null::boolean[] as opens,
            array_agg(o.ref) as gone
        into given
        from (select {ref} as ref from duetime_old) as o
        where o.ref is not null;
    else
        perform duetime.{call}_clear();
        return null;
    end if;
    if given.refs is null and given.gone is null then
        return null;
    end if;
    if current_setting('duetime.nested', true) = 'on' and not row_security_active(tg_relid) then
        -- Another trigger may have written to these rows since: read what they are now. If row security
        -- hides rows from the owner, we cannot.
        gone := given.gone;
        execute $duetime_now$
            select array_agg(n.ref) as refs, array_agg(n.scope) as scopes, array_agg(n.due) as dues,
                array_agg(n.local_due) as local_dues, array_agg(n.zone) as zones,
                array_agg(n.recipients) as recipients, array_agg(n.data) as data,
                array_agg(n.rules) as rules, array_agg(n.open) as opens, null::text[] as gone
            from (select {columns}
                  from $duetime_now$ || tg_relid::regclass || $duetime_now$
                  where ({keys}) in (select {keys} from $duetime_now$ || case tg_op
                      when 'INSERT' then 'duetime_new' when 'DELETE' then 'duetime_old'
                      else $duetime_now$duetime_new union select {keys} from duetime_old$duetime_now$
                      end || $duetime_now$)) as n
            where n.ref is not null $duetime_now$ into given;
        given.gone := array(select unnest(gone) except select unnest(given.refs));
    end if;
    if pg_trigger_depth() > 1 then
        perform set_config('duetime.nested', 'on', true);
    end if;
    perform duetime.{call}(given.refs, given.scopes, given.dues, given.local_dues,
        given.zones, given.recipients, given.data, given.rules, given.opens, given.gone);
    return null;
end $duetime$;

-- name: track_scopes_function
create or replace function {function}() returns trigger
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $duetime$
#variable_conflict use_column
declare
    given record;
    gone text[];
begin
    if tg_op = 'INSERT' then
        select array_agg(n.ref) as refs, array_agg(n.scope) as parents, array_agg(n.rules) as rules,
            array_agg(n.locked) as locks, array_agg(n.open) as opens, null::text[] as gone
        into given
        from (select {columns}
              from duetime_new) as n
        where n.open and n.ref is not null;
    elsif tg_op = 'UPDATE' then
        with o as materialized (
            select {columns}
            from duetime_old
        ), n as materialized (
            select {columns}
            from duetime_new
        )
        select array_agg(c.ref) as refs, array_agg(c.scope) as parents, array_agg(c.rules) as rules,
            array_agg(c.locked) as locks, array_agg(c.open) as opens,
            (select array_agg(g.ref) from (select ref from o except select ref from n) as g
             where g.ref is not null) as gone
        into given
        from (select * from n except select * from o) as c
        where c.ref is not null;
    elsif tg_op = 'DELETE' then
        select null::text[] as refs, null::text[] as parents, null::jsonb[] as rules,
            null::boolean[] as locks, null::boolean[] as opens, array_agg(o.ref) as gone
        into given
        from (select {ref} as ref from duetime_old) as o
        where o.ref is not null;
    else
        perform duetime.{call}_clear();
        return null;
    end if;
    if given.refs is null and given.gone is null then
        return null;
    end if;
    if current_setting('duetime.nested', true) = 'on' and not row_security_active(tg_relid) then
        -- Another trigger may have written to these rows since: read what they are now. If row security
        -- hides rows from the owner, we cannot.
        gone := given.gone;
        execute $duetime_now$
            select array_agg(n.ref) as refs, array_agg(n.scope) as parents,
                array_agg(n.rules) as rules, array_agg(n.locked) as locks, array_agg(n.open) as opens,
                null::text[] as gone
            from (select {columns}
                  from $duetime_now$ || tg_relid::regclass || $duetime_now$
                  where ({keys}) in (select {keys} from $duetime_now$ || case tg_op
                      when 'INSERT' then 'duetime_new' when 'DELETE' then 'duetime_old'
                      else $duetime_now$duetime_new union select {keys} from duetime_old$duetime_now$
                      end || $duetime_now$)) as n
            where n.ref is not null $duetime_now$ into given;
        given.gone := array(select unnest(gone) except select unnest(given.refs));
    end if;
    if pg_trigger_depth() > 1 then
        perform set_config('duetime.nested', 'on', true);
    end if;
    perform duetime.{call}(given.refs, given.parents, given.rules, given.locks, given.opens,
        given.gone);
    return null;
end $duetime$;

-- name: track_untrigger
drop trigger if exists "{trigger}_{event}" on {table};

-- name: track_trigger_insert
create trigger "{trigger}_insert" after insert on {table}
    referencing new table as duetime_new
    for each statement execute function {function}();

-- name: track_trigger_update
create trigger "{trigger}_update" after update on {table}
    referencing old table as duetime_old new table as duetime_new
    for each statement execute function {function}();

-- name: track_trigger_delete
create trigger "{trigger}_delete" after delete on {table}
    referencing old table as duetime_old
    for each statement execute function {function}();

-- name: track_trigger_truncate
create trigger "{trigger}_truncate" after truncate on {table}
    for each statement execute function {function}();

-- name: track_fill
-- Some rows, in the order of their key, locked: a write waits for us, or has been and is seen.
with locked as materialized (
    select * from {table} where {past} order by {keys} limit {most} for share
), given as materialized (
    select {columns}, array[{texts}] as key, row_number() over (order by {keys}) as number
    from locked
), made as materialized (
    select duetime.{call}(array_agg(n.ref), array_agg(n.scope), array_agg(n.due),
        array_agg(n.local_due), array_agg(n.zone), array_agg(n.recipients), array_agg(n.data),
        array_agg(n.rules), array_agg(n.open), array[]::text[])
    from given as n where n.ref is not null
    having count(*) > 0
)
select (select count(*) from given), (select key from given order by number desc limit 1)
from (select count(*) from made) as done;

-- name: track_scopes_fill
with locked as materialized (
    select * from {table} where {past} order by {keys} limit {most} for share
), given as materialized (
    select {columns}, array[{texts}] as key, row_number() over (order by {keys}) as number
    from locked
), made as materialized (
    select duetime.{call}(array_agg(n.ref), array_agg(n.scope), array_agg(n.rules),
        array_agg(n.locked), array_agg(n.open), array[]::text[])
    from given as n where n.ref is not null
    having count(*) > 0
)
select (select count(*) from given), (select key from given order by number desc limit 1)
from (select count(*) from made) as done;

-- name: track_missing
-- What is tracked and has no row: all of it, in one pass over both. A reference that is too long is shortened as
-- in `_short_ref`. If a policy may hide rows from this role, none is missing.
select r.ref from duetime.{call}_refs(null) as r(ref)
where not row_security_active({table_name}::regclass)
  and not exists (
    select from (select {ref} as ref from {table}) as n
    where case when octet_length(n.ref) <= 800 then n.ref else left(n.ref, 150) || '…' || md5(n.ref) end = r.ref);

-- name: track_hold
-- A row that is inserted meanwhile has been seen, or waits for us with its subject.
select r.ref from duetime.{call}_refs({refs}) as r(ref);

-- name: track_drop
-- As the trigger of a delete, for rows that are not there. Call `track_hold` before.
with gone as materialized (
    select array_agg(g.ref) as refs from unnest({refs}) as g(ref)
    where not exists (
        select from (select {ref} as ref from {table}) as n
        where case when octet_length(n.ref) <= 800 then n.ref else left(n.ref, 150) || '…' || md5(n.ref) end = g.ref)
)
select duetime.{call}({nothing}g.refs) from gone as g where g.refs is not null;
