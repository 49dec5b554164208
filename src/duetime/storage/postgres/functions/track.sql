-- Tracked tables: what their triggers and the back-fill call.

-- Whether a zone has this very name, here and in Python.
create or replace function duetime._is_zone(zone text) returns boolean
    language plpgsql as $$
begin
    if exists (select from duetime.zone as z where z.name = zone) then
        return true;
    end if;
    -- This view reads every file of the zones: hence the table.
    if zone ~ '^[A-Za-z0-9_+-]{1,40}(/[A-Za-z0-9_+-]{1,40}){0,3}$'
        and split_part(zone, '/', 1) not in ('right', 'posix', 'posixrules', 'localtime', 'build')
        and exists (select from pg_timezone_names as z where z.name = zone)
    then
        insert into duetime.zone (name) values (zone) on conflict do nothing;
        return true;
    end if;
    return false;
end $$;

-- These are called for each row: what most rows hold is recognised by an expression alone, which PostgreSQL
-- inlines. A call takes as long as it takes to write a row.

create or replace function duetime._different_names(given jsonb) returns jsonb
    language sql immutable as $$
    select coalesce(jsonb_agg(n.recipient order by n.place), '[]'::jsonb)
    from (select e.recipient, min(e.place) as place
          from jsonb_array_elements_text(given) with ordinality as e(recipient, place)
          where e.recipient <> '' and length(e.recipient) <= 200
          group by e.recipient) as n
$$;

-- Recipients as they are stored: a list of different texts.
create or replace function duetime._recipients(given jsonb) returns jsonb
    language sql stable as $$
    select case
        when given is null or given = '[]' then '[]'::jsonb
        when jsonb_typeof(given) = 'string' and length(given #>> '{}') between 1 and 200
            then jsonb_build_array(given)
        when jsonb_typeof(given) <> 'array' then '[]'::jsonb
        when jsonb_array_length(given) = 1 and jsonb_typeof(given -> 0) = 'string'
            and length(given ->> 0) between 1 and 200 then given
        else duetime._different_names(given) end
$$;

create or replace function duetime._has_long_name(recipients jsonb) returns boolean
    language sql immutable as $$
    select case jsonb_typeof(recipients)
        when 'string' then length(recipients #>> '{}') > 200
        when 'array' then exists (select from jsonb_array_elements_text(recipients) as e(name)
                                  where length(e.name) > 200)
        else false end
$$;

-- Whether one of them has a name that is too long to be kept.
create or replace function duetime._any_too_long(recipients jsonb) returns boolean
    language sql stable as $$
    select pg_column_size(recipients) > 200 and duetime._has_long_name(recipients)
$$;

-- A value as jsonb; null if it cannot be converted, such as `json` with \u0000.
create or replace function duetime._as_json(given anyelement) returns jsonb
    language plpgsql stable strict set search_path = pg_catalog, pg_temp as $$
begin
    return to_jsonb(given);
exception when others then
    return null;
end $$;

-- Whether a value is nested in more than 100 levels.
create or replace function duetime._is_deep(given jsonb) returns boolean
    language plpgsql immutable as $$
begin
    return jsonb_path_exists(given, '$.**{101}');
exception when statement_too_complex then
    return true;
end $$;

-- The reference of a row, short enough for an index.
create or replace function duetime._short_ref(ref text) returns text
    language sql immutable as $$
    select case when octet_length(ref) <= 800 then ref else left(ref, 150) || '…' || md5(ref) end
$$;

-- Whether the role that called us may act for the one that tracks a table. (While a function runs with
-- its owner's rights, `current_user` is the owner.)
create or replace function duetime._may_act_for(owner text) returns boolean
    language sql stable as $$
    select duetime._may_write() or coalesce(
        (select pg_has_role(coalesce(nullif(current_setting('role'), 'none'), session_user),
                            r.oid, 'usage')
         from pg_roles as r where r.rolname = owner), false)
$$;

create or replace function duetime._check_track(track text) returns void
    language plpgsql stable as $$
declare
    owner text;
begin
    select t.owner into owner from duetime.tracked as t where t.name = track;
    if found and not duetime._may_act_for(owner) then
        raise exception 'duetime: the tracked table % belongs to the role %', track, owner
            using errcode = 'insufficient_privilege';
    end if;
end $$;

-- Store how a table is tracked: by its owner, and under a name that no other role uses. Makes three functions
-- that only this owner may execute: its triggers and `put` call them, and they read and change this track's
-- subjects and no others. Returns the name of the table under that name, if there was one.
create or replace function duetime.track_define(name text, table_name text, definition json, actor text)
    returns text language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    known duetime.tracked;
    call constant text := '_track_' || md5(track_define.name);
    is_scopes constant boolean := coalesce(definition ->> 'kind', 'subjects') = 'scopes';
    owner text;
begin
    if strpos(track_define.name, ':') > 0 then
        raise exception 'duetime: the name of a tracked table must not contain a colon, got %', track_define.name
            using errcode = '22023';
    end if;
    select r.rolname into owner
    from pg_class as c join pg_namespace as n on n.oid = c.relnamespace
    join pg_roles as r on r.oid = c.relowner
    where n.nspname = (parse_ident(track_define.table_name))[1]
      and c.relname = (parse_ident(track_define.table_name))[2];
    if not found or not duetime._may_act_for(owner) then
        raise exception 'duetime: only the owner of the table % can track it', track_define.table_name
            using errcode = 'insufficient_privilege';
    end if;
    perform duetime._check_track(track_define.name);
    select * into known from duetime.tracked as t where t.name = track_define.name for update;
    insert into duetime.tracked as t (name, table_name, owner, definition)
    values (track_define.name, track_define.table_name, owner, track_define.definition)
    on conflict (name) do update
        set table_name = excluded.table_name, owner = excluded.owner, definition = excluded.definition,
            problem = null, updated_at = duetime.now();
    execute format(
        case when is_scopes then
            'create or replace function duetime.%I(refs text[], parents text[], rules jsonb[],'
            ' locks boolean[], opens boolean[], gone text[])'
        else
            'create or replace function duetime.%I(refs text[], scopes text[], dues timestamptz[],'
            ' local_dues timestamp[], zones text[], recipients jsonb[], data jsonb[], rules jsonb[],'
            ' opens boolean[], gone text[])' end
        || ' returns void language sql security definer set search_path = pg_catalog, pg_temp as %L',
        call, format(case when is_scopes then 'select duetime._track_scopes(%L, $1, $2, $3, $4, $5, $6)'
            else 'select duetime._track_rows(%L, $1, $2, $3, $4, $5, $6, $7, $8, $9, $10)' end, name));
    execute format(
        'create or replace function duetime.%I() returns integer language sql security definer'
        ' set search_path = pg_catalog, pg_temp as %L',
        call || '_clear', format('select duetime._track_clear(%L, null)', name));
    execute format(
        'create or replace function duetime.%I(chosen text[]) returns setof text language sql security definer'
        ' set search_path = pg_catalog, pg_temp as %L',
        call || '_refs', format('select duetime._track_refs(%L, $1)', name));
    execute format('revoke execute on function duetime.%I, duetime.%I, duetime.%I from public',
                   call, call || '_clear', call || '_refs');
    execute format('grant execute on function duetime.%I, duetime.%I, duetime.%I to %I',
                   call, call || '_clear', call || '_refs', owner);
    if known.definition::text is distinct from definition::text then
        insert into duetime.audit (actor, action, entity, before, after)
        values (actor, 'table.put', 'table:' || name, known.definition, definition);
    end if;
    return known.table_name;
end $$;

-- What of a row cannot be used, as a subject stores it.
create or replace function duetime._row_problem(problems jsonb[])
    returns json language sql stable as $$
    select case when cardinality(problems) > 0 then json_build_object(
        'code', 'row_unusable', 'facts', json_build_object('problems', to_json(problems))) end
$$;

-- Rows of a tracked table have changed: make their subjects and reminders true. Called by its
-- triggers and by the back-fill, with one entry per row that changed what is tracked, and the
-- references of rows that are gone. A row must not fail for what it holds: what cannot be used of it
-- (an unknown zone, a due time out of range, a scope or an id that is too long, too many recipients, too
-- much data) is stored as the subject's `problem`; a scope that is not there is made, empty. A subject
-- that the application or another track has put stays theirs.
create or replace function duetime._track_rows(
    track text, refs text[], scopes text[], dues timestamptz[], local_dues timestamp[],
    zones text[], recipients jsonb[], data jsonb[], rules jsonb[], opens boolean[], gone text[])
    returns void language plpgsql
    set search_path = pg_catalog, pg_temp set jit = off
    set plan_cache_mode = auto set work_mem = '32MB' set enable_mergejoin = off
    set enable_seqscan = off set random_page_cost = 1.1 as $$
#variable_conflict use_column
declare
    moment constant timestamptz := duetime.now();
    -- The role that writes: ours, while this function runs, is its owner's.
    actor constant text := 'trigger: ' || coalesce(nullif(current_setting('role'), 'none'), session_user);
    tracked_row duetime.tracked;
    default_zone text;
    own_rules json;
    by_column boolean;
    bad_zones text[];
    given_scopes text[];
    around text[];
    moved_into text[];
    moved bigint[];
    closed bigint[];
    missing bigint;
    made bigint;
    -- A change that the moved ones wait for, if they are too many to be armed here.
    number bigint;
    waiting bigint[] := '{}';
    foreign_ref text;
    part record;
begin
    if exists (select from unnest(refs || gone) as r(ref) where octet_length(r.ref) > 800) then
        refs := array(select duetime._short_ref(r.ref)
                      from unnest(refs) with ordinality as r(ref, place) order by r.place);
        gone := array(select duetime._short_ref(r.ref) from unnest(gone) as r(ref));
    end if;
    perform set_config('plan_cache_mode', case when cardinality(refs) < 100
        then 'force_generic_plan' else 'force_custom_plan' end, true);
    select * into tracked_row from duetime.tracked as t where t.name = track;
    if not found then
        raise exception 'duetime: no tracked table is named %', track using errcode = '22023',
            hint = 'Drop its triggers, or run `duetime tables put` again.';
    end if;
    default_zone := coalesce(tracked_row.definition ->> 'zone', 'UTC');
    own_rules := case when json_typeof(tracked_row.definition -> 'rules') = 'array'
                      then tracked_row.definition -> 'rules' end;
    by_column := tracked_row.definition ->> 'remind_from' is not null;
    bad_zones := array(
        select z.zone from (select distinct unnest(zones) as zone) as z
        where z.zone is not null and not duetime._is_zone(z.zone));

    -- Scopes before subjects, as everyone does. The old ones too: who changes their rules has to see
    -- whether a subject has left them.
    given_scopes := array(
        select distinct n.scope from unnest(scopes, opens) as n(scope, open)
        where n.scope <> '' and n.open and length(n.scope) <= 200);
    around := array(
        with recursive chain as (
            select s.ref, s.parent, 0 as level from duetime.scope as s
            where s.ref = any (given_scopes)
               or s.ref in (select k.scope from duetime.subject as k where k.ref = any (refs))
            union
            select s.ref, s.parent, c.level + 1
            from duetime.scope as s join chain as c on s.ref = c.parent
            where c.level < 100
        )
        select c.ref from chain as c union select unnest(given_scopes) order by 1);
    -- These locks only keep the turn, and there is not room for any number of them: see `scope_queue`.
    if cardinality(around) <= 100 then
        perform duetime._share_turn(around);
    end if;
    perform duetime._make_scopes(given_scopes, actor);
    loop
        -- Of one that another transaction has moved while this one waited for it, those that are around it now, too.
        moved_into := array(
            with locked as materialized (
                select s.parent from duetime.scope as s where s.ref = any (around) order by s.ref for share
            )
            select l.parent from locked as l where l.parent is not null except select unnest(around));
        around := around || moved_into;
        -- One that another transaction has deleted while this one waited for it is made again.
        exit when not duetime._make_scopes(given_scopes, actor) and cardinality(moved_into) = 0;
    end loop;
    perform from duetime.subject as s
    where s.ref = any (refs) or s.ref = any (gone) order by s.id for update;
    if exists (select from duetime.bulk_change) then
        perform duetime._catch_up(array(select s.id from duetime.subject as s where s.ref = any (refs)));
    end if;
    if duetime._arms_later(cardinality(refs)) then
        number := duetime._begin_change();
    end if;
    made := coalesce(-number, duetime._changes_made());

    -- Some thousand at a time: what is joined and sorted of a hundred thousand would go to disk. In the order
    -- in which the subjects are stored.
    for part in
        select refs, scopes, dues, local_dues, zones, recipients, data, rules, opens
        where cardinality(refs) <= 5000
        union all
        (select array_agg(n.ref), array_agg(n.scope), array_agg(n.due), array_agg(n.local_due),
             array_agg(n.zone), array_agg(n.recipients), array_agg(n.data), array_agg(n.rules),
             array_agg(n.open)
         from (select n.*, (row_number() over (order by s.id) - 1) / 5000 as number
               from unnest(refs, scopes, dues, local_dues, zones, recipients, data, rules, opens)
                   as n(ref, scope, due, local_due, zone, recipients, data, rules, open)
               left join duetime.subject as s on s.ref = n.ref
               where cardinality(_track_rows.refs) > 5000) as n
         group by n.number)
    loop
        loop
            with compiled as materialized (
                -- Of many rows, few differ.
                select v.value, r.rules, r.problems
                from (select distinct n.value from unnest(part.rules) as n(value)
                      where by_column and n.value is not null) as v
                cross join lateral duetime._read_rules(v.value) as r
            ), there as materialized (
                select s.* from duetime.subject as s where s.ref = any (part.refs)
            ), given as materialized (
                select n.ref, case when length(n.scope) <= 200 then nullif(n.scope, '') end as scope,
                    -- Not due: without recipients the handler would choose who is reminded.
                    case when not (l.crowded or l.unreadable) then d.due_at end as due_at, z.tz, n.open,
                    to_json(l.recipients) as recipients, to_json(l.data) as data,
                    l.recipients as recipients_b, l.data as data_b,
                    case when by_column then r.rules else own_rules end as rules,
                    array_remove(array[
                        case when n.zone = any (bad_zones)
                            then jsonb_build_object('code', 'zone_unknown', 'facts',
                                jsonb_build_object('tz', left(n.zone, 60), 'used', default_zone)) end,
                        case when d.raw is not null and d.due_at is null
                            then '{"code": "due_out_of_range"}'::jsonb end,
                        case when length(n.scope) > 200
                            then '{"code": "scope_too_long", "facts": {"limit": 200}}'::jsonb end,
                        case when l.crowded
                            then '{"code": "too_many_recipients", "facts": {"limit": 1000}}'::jsonb end,
                        case when l.unreadable then '{"code": "recipients_unreadable"}'::jsonb end,
                        case when duetime._any_too_long(n.recipients)
                            then '{"code": "recipient_too_long", "facts": {"limit": 200}}'::jsonb end,
                        case when l.heavy then '{"code": "data_too_large"}'::jsonb end,
                        case when l.deep
                            then '{"code": "data_too_deep", "facts": {"limit": 100}}'::jsonb end,
                        case when n.ref like '%…%' and octet_length(n.ref) > 150
                            then '{"code": "id_too_long"}'::jsonb end], null)
                        || coalesce(r.problems, '{}') as problems
                from unnest(part.refs, part.scopes, part.dues, part.local_dues, part.zones, part.recipients,
                            part.data, part.rules, part.opens)
                    as n(ref, scope, due, local_due, zone, recipients, data, rules, open)
                left join compiled as r on r.value = n.rules
                cross join lateral (
                    select case when n.zone is null or n.zone = any (bad_zones) then default_zone
                                else n.zone end as tz) as z
                cross join lateral (
                    select case
                        when n.due is not null then n.due
                        when not isfinite(n.local_due)
                            or n.local_due not between '1969-12-30' and '9000-01-03' then 'infinity'
                        when n.local_due is not null then duetime._to_instant(
                            n.local_due, coalesce(tracked_row.definition ->> 'due_zone', z.tz))
                        end as raw, duetime._recipients(n.recipients) as recipients) as w
                cross join lateral (
                    select w.raw, case when w.raw between '1970-01-01Z' and '9000-01-01Z'
                                       then w.raw end as due_at) as d
                cross join lateral (
                    -- The trigger sends a number in place of a value that is too large.
                    select jsonb_typeof(n.data) = 'number' or pg_column_size(n.data) > 1048576 as heavy,
                        jsonb_typeof(n.recipients) = 'number'
                            or jsonb_array_length(w.recipients) > 1000 as crowded,
                        jsonb_typeof(n.recipients) in ('object', 'boolean') as unreadable,
                        -- Python could not read it.
                        pg_column_size(n.data) > 500 and duetime._is_deep(n.data) as deep) as m
                cross join lateral (
                    select m.heavy, m.crowded, m.unreadable, m.deep,
                        case when m.heavy or m.deep then '{}'::jsonb else n.data end as data,
                        case when m.crowded then '[]'::jsonb else w.recipients end as recipients) as l
                where not exists (select from there as s
                                  where s.ref = n.ref and s.tracked is distinct from track)
            ), before as (
                select s.* from there as s where s.tracked = track
            ), change as materialized (
                select b.id, g.*, b.status = 'open' and not g.open as closes,
                    b.scope as old_scope, b.due_at as old_due_at, b.tz as old_tz,
                    b.status as old_status, b.rules as old_rules, b.recipients as old_recipients,
                    (b.scope, b.due_at, b.tz, b.status, b.rules::text)
                        is distinct from (g.scope, g.due_at, g.tz, 'open', g.rules::text)
                        or b.recipients::jsonb is distinct from g.recipients_b as moves
                from before as b join given as g on g.ref = b.ref
                where case when not g.open then b.status = 'open'
                    else (b.scope, b.due_at, b.tz, b.status, b.rules::text, b.problem::text, b.tracked)
                            is distinct from
                         (g.scope, g.due_at, g.tz, 'open', g.rules::text,
                          duetime._row_problem(g.problems)::text, track)
                        or b.recipients::jsonb is distinct from g.recipients_b
                        or b.data::jsonb is distinct from g.data_b end
            ), changed as (
                update duetime.subject as s
                set scope = case when c.closes then s.scope else c.scope end,
                    due_at = case when c.closes then s.due_at else c.due_at end,
                    tz = case when c.closes then s.tz else c.tz end,
                    status = case when c.closes then 'done' else 'open' end,
                    rules = case when c.closes then s.rules else c.rules end,
                    data = case when c.closes then s.data else c.data end,
                    recipients = case when c.closes then s.recipients else c.recipients end,
                    problem = case when c.closes then s.problem else duetime._row_problem(c.problems) end,
                    tracked = track,
                    revision = s.revision + (c.moves or c.closes)::integer,
                    armed_under = case when c.closes then greatest(s.armed_under, 0)
                                       when c.moves then made else s.armed_under end,
                    updated_at = moment
                from change as c where s.id = c.id
            ), fresh as materialized (
                select g.* from given as g
                where g.open and not exists (select from before as b where b.ref = g.ref)
            ), added as (
                insert into duetime.subject (ref, scope, due_at, tz, status, rules, data, recipients,
                                             tracked, problem, armed_under, created_at, updated_at)
                select f.ref, f.scope, f.due_at, f.tz, 'open', f.rules, f.data, f.recipients, track,
                    duetime._row_problem(f.problems), made, moment, moment
                from fresh as f order by f.ref
                on conflict (ref) do nothing
                returning id, ref, scope, due_at, tz, rules, recipients
            ), texts as materialized (
                -- Of many rows, few differ, and a text takes as long as a row.
                select d.rules, duetime._rule_texts(d.rules::json) as texts
                from (select b.rules::text as rules from before as b
                      union select g.rules::text from given as g) as d
                where d.rules is not null
            ), audited as (
                insert into duetime.audit (at, actor, action, entity, before, after)
                select moment, actor, case when c.closes then 'subject.complete' else 'subject.put' end,
                    'subject:' || c.ref,
                    json_build_object('scope', c.old_scope, 'due_at', duetime._say(c.old_due_at),
                        'tz', c.old_tz, 'status', c.old_status,
                        'rules', o.texts,
                        'recipients', c.old_recipients),
                    case when c.closes then
                        json_build_object('scope', c.old_scope, 'due_at', duetime._say(c.old_due_at),
                            'tz', c.old_tz, 'status', 'done',
                            'rules', o.texts,
                            'recipients', c.old_recipients)
                    else
                        json_build_object('scope', c.scope, 'due_at', duetime._say(c.due_at),
                            'tz', c.tz, 'status', 'open', 'rules', n.texts,
                            'recipients', c.recipients) end
                from change as c left join texts as o on o.rules = c.old_rules::text
                left join texts as n on n.rules = c.rules::text
                where c.closes or c.moves
                union all
                select moment, actor, 'subject.put', 'subject:' || a.ref, null,
                    json_build_object('scope', a.scope, 'due_at', duetime._say(a.due_at), 'tz', a.tz,
                        'status', 'open', 'rules', n.texts, 'recipients', a.recipients)
                from added as a left join texts as n on n.rules = a.rules::text
            )
            select array(select a.id from added as a
                         union all select c.id from change as c where c.moves and not c.closes),
                array(select c.id from change as c where c.closes),
                (select count(*) from fresh) - (select count(*) from added)
            into moved, closed, missing;
            if number is not null then
                waiting := waiting || moved;
            elsif cardinality(moved) > 0 then
                perform duetime.rearm(moved);
            end if;
            if cardinality(closed) > 0 then
                perform duetime.rearm(closed, json_build_object('code', 'subject_completed'));
            end if;
            -- A subject of the same name was put in the meantime: it is visible now, and left alone.
            exit when missing = 0;
        end loop;
    end loop;
    if number is not null then
        perform duetime._end_change(number, waiting);
    end if;
    select min(s.ref) into foreign_ref from duetime.subject as s
    where s.ref = any (refs) and s.tracked is distinct from track;
    if foreign_ref is not null and tracked_row.problem is null then
        update duetime.tracked as t
        set problem = json_build_object('code', 'subject_not_tracked', 'facts',
                                        json_build_object('subject', left(foreign_ref, 100)))
        where t.name = track and t.problem is null;
    end if;
    if cardinality(gone) > 0 then
        given_scopes := array(select distinct s.scope from duetime.subject as s
                              where s.ref = any (gone) and s.tracked = track and s.scope is not null);
        perform duetime._delete_subjects(
            array(select s.id from duetime.subject as s
                  where s.ref = any (gone) and s.tracked = track order by s.id), actor);
        perform duetime._drop_gone_scopes(given_scopes);
    end if;
end $$;

-- Delete subjects with their reminders, and end the jobs of these that wait.
create or replace function duetime._delete_subjects(ids bigint[], actor text) returns void
    language plpgsql as $$
declare
    moment constant timestamptz := duetime.now();
begin
    perform from duetime.subject as s where s.id = any (ids) order by s.id for update;
    with gone as materialized (
        select r.job_id from duetime.reminder as r
        where r.subject_id = any (ids) and coalesce(r.status, '') = 'armed'
    ), left_due as (
        delete from duetime.due as d using gone as g where d.job_id = g.job_id
        returning d.job_id, d.attempt
    ), unparked as (
        delete from duetime.parked as p using gone as g where p.job_id = g.job_id
        returning p.job_id, p.attempt
    ), audited as (
        insert into duetime.audit (at, actor, action, entity, before)
        select moment, actor, 'subject.delete', 'subject:' || s.ref,
            json_build_object('scope', s.scope, 'due_at', duetime._say(s.due_at), 'tz', s.tz,
                'status', s.status, 'recipients', s.recipients)
        from duetime.subject as s where s.id = any (ids)
    )
    insert into duetime.attempt (job_id, token, attempt, outcome, finished_at, error_code)
    select l.job_id, nextval('duetime.claim_token_seq'), l.attempt, 'superseded', moment,
        'subject_deleted'
    from (select * from left_due union all select * from unparked) as l;
    delete from duetime.reminder as r where r.subject_id = any (ids);
    delete from duetime.subject as s where s.id = any (ids);
end $$;

-- Puts of subjects and changes of their scopes take turns. A turn is worth half a second: any role could hold
-- this lock, and a write must not wait for it; what is true does not depend on it. That is less than PostgreSQL waits
-- before it looks for a deadlock, unless `deadlock_timeout` is set to less: its holder may wait for a row of ours.
create or replace function duetime._share_turn(refs text[]) returns void
    language plpgsql set lock_timeout = '500ms' as $$
declare
    turn constant integer := hashtext('duetime.scope');
    ref text;
begin
    foreach ref in array refs loop
        if not pg_try_advisory_xact_lock_shared(turn, hashtext(ref)) then
            begin
                perform pg_advisory_xact_lock_shared(turn, hashtext(ref));
            exception when lock_not_available or deadlock_detected then
                return;
            end;
        end if;
    end loop;
end $$;

-- The turn of one that changes scopes; see `_share_turn`.
create or replace function duetime._own_turn(refs text[]) returns void
    language plpgsql set lock_timeout = '500ms' as $$
declare
    turn constant integer := hashtext('duetime.scope');
    ref text;
begin
    if cardinality(refs) > 100 then
        return;
    end if;
    foreach ref in array refs loop
        begin
            perform pg_advisory_xact_lock(turn, hashtext(ref));
        exception when lock_not_available or deadlock_detected then
            return;
        end;
    end loop;
end $$;

-- Delete the subjects or the scopes of a tracked table: all (it was truncated), or some of them (it is
-- tracked no longer). Returns how many.
create or replace function duetime._track_clear(track text, most integer) returns integer
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    actor constant text := 'trigger: ' || coalesce(nullif(current_setting('role'), 'none'), session_user);
    ids bigint[];
    refs text[];
    around text[] := '{}';
    count integer := 0;
begin
    loop
        refs := array(select t.ref from duetime.tracked_scope as t
                      where t.track = _track_clear.track
                        and (most is not null or t.problem ->> 'code' is distinct from 'row_gone')
                      order by t.ref limit coalesce(most, 5000));
        exit when cardinality(refs) = 0;
        perform duetime._scopes_gone(track, refs, most is null, actor);
        count := count + cardinality(refs);
        if most is not null then
            return count;
        end if;
    end loop;
    loop
        ids := array(select s.id from duetime.subject as s where s.tracked = track
                     order by s.id limit coalesce(most, 5000));
        around := array(select unnest(around) union
                        select s.scope from duetime.subject as s
                        where s.id = any (ids) and s.scope is not null);
        perform duetime._delete_subjects(ids, actor);
        count := count + cardinality(ids);
        exit when most is not null or cardinality(ids) = 0;
    end loop;
    perform duetime._drop_gone_scopes(around);
    return count;
end $$;

-- The references of the subjects and the scopes of a tracked table: all, or those that are `chosen`, locked as a change of
-- their rows locks them.
create or replace function duetime._track_refs(track text, chosen text[]) returns setof text
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if chosen is not null then
        -- Its turn first, as everyone who changes scopes: a writer that has its turn may wait for a row.
        perform duetime._own_turn(array(
            select t.ref from duetime.tracked_scope as t
            where t.ref = any (chosen) and t.track = _track_refs.track order by 1));
        perform from duetime.tracked_scope as t join duetime.scope as s on s.ref = t.ref
        where t.ref = any (chosen) and t.track = _track_refs.track order by s.ref for update of s;
        perform from duetime.subject as s
        where s.ref = any (chosen) and s.tracked = _track_refs.track order by s.id for update;
    end if;
    return query
    select s.ref from duetime.subject as s
    where s.tracked = _track_refs.track and (chosen is null or s.ref = any (chosen))
    union all
    select t.ref from duetime.tracked_scope as t
    where t.track = _track_refs.track and coalesce(t.problem ->> 'code', '') <> 'row_gone'
      and (chosen is null or t.ref = any (chosen));
end $$;

create or replace function duetime.track_clear(track text, most integer default null) returns integer
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform duetime._check_track(track);
    return duetime._track_clear(track, most);
end $$;

-- A table is tracked no longer; its triggers and subjects are gone already.
create or replace function duetime.track_forget(name text, actor text) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    known duetime.tracked;
begin
    perform duetime._check_track(track_forget.name);
    delete from duetime.tracked as t where t.name = track_forget.name returning * into known;
    if known.name is null then
        return false;
    end if;
    execute format('drop function if exists duetime.%I, duetime.%I, duetime.%I',
                   '_track_' || md5(known.name), '_track_' || md5(known.name) || '_clear',
                   '_track_' || md5(known.name) || '_refs');
    insert into duetime.audit (actor, action, entity, before)
    values (actor, 'table.delete', 'table:' || known.name, known.definition);
    return true;
end $$;

-- They write with their owner's rights: grants decide who may call them.
revoke execute on function duetime.track_define, duetime.track_clear, duetime.track_forget from public;
