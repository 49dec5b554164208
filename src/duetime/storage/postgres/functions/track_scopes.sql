-- Tracked tables of scopes: what their triggers and the back-fill call.

-- Rows of a tracked table of scopes have changed: make the scopes true, and the reminders of all subjects
-- inside them. Called as `_track_rows` is, and as little fails for what a row holds. A parent that is
-- not there is made, empty, and follows its own row when that comes. A scope that the application has
-- put stays the application's.
create or replace function duetime._track_scopes(
    track text, refs text[], parents text[], rules jsonb[], locks boolean[], opens boolean[], gone text[])
    returns void language plpgsql
    set search_path = pg_catalog, pg_temp set jit = off set work_mem = '32MB' as $$
#variable_conflict use_column
declare
    moment constant timestamptz := duetime.now();
    actor constant text := 'trigger: ' || coalesce(nullif(current_setting('role'), 'none'), session_user);
    tracked_row duetime.tracked;
    own_rules json;
    by_column boolean;
    named text[];
    changed text[];
    looping text[];
    befores jsonb;
begin
    select * into tracked_row from duetime.tracked as t where t.name = track;
    if not found then
        raise exception 'duetime: no tracked table is named %', track using errcode = '22023',
            hint = 'Drop its triggers, or run `duetime tables put` again.';
    end if;
    own_rules := case when json_typeof(tracked_row.definition -> 'rules') = 'array'
                      then tracked_row.definition -> 'rules' end;
    by_column := tracked_row.definition ->> 'remind_from' is not null;
    gone := coalesce(gone, '{}')
        || array(select n.ref from unnest(refs, opens) as n(ref, open) where not n.open);
    named := array(
        select n.ref from unnest(refs, opens) as n(ref, open) where n.open and length(n.ref) <= 200
        union
        select n.parent from unnest(parents, opens) as n(parent, open)
        where n.open and n.parent <> '' and length(n.parent) <= 200
        order by 1);
    perform duetime._own_turn(array(select unnest(refs || gone) order by 1));
    perform duetime._make_scopes(named, actor);
    loop
        perform from duetime.scope as s where s.ref = any (refs || gone) order by s.ref for no key update;
        perform from duetime.scope as s where s.ref = any (named) order by s.ref for key share;
        -- One that another transaction has deleted while this one waited for it is made again.
        exit when not duetime._make_scopes(named, actor);
    end loop;

    with compiled as materialized (
        select v.value, r.rules, r.problems
        from (select distinct n.value from unnest(rules) as n(value)
              where by_column and n.value is not null) as v
        cross join lateral duetime._read_rules(v.value) as r
    ), given as materialized (
        select n.ref, coalesce(n.locked, false) as locked, s.ref is not null as ours,
            case when length(n.parent) <= 200 then nullif(n.parent, '') end as parent,
            case when by_column then r.rules else own_rules end as rules,
            case when s.ref is null then '{"code": "scope_not_tracked"}'::json
                 else duetime._row_problem(array_remove(coalesce(r.problems, '{}')
                     || case when length(n.parent) > 200 then
                        '{"code": "parent_too_long", "facts": {"limit": 200}}'::jsonb end, null))
                 end as problem
        from unnest(refs, parents, rules, locks, opens) as n(ref, parent, rules, locked, open)
        left join compiled as r on r.value = n.rules
        left join duetime.tracked_scope as t on t.ref = n.ref
        left join duetime.scope as s on s.ref = n.ref
            and (t.problem ->> 'code' <> 'scope_not_tracked' or t.ref is not null and t.problem is null
                 or s.parent is null and s.rules is null and not s.locked)
        where n.open and length(n.ref) <= 200
    ), noted as (
        insert into duetime.tracked_scope as t (ref, track, problem)
        select g.ref, _track_scopes.track, g.problem from given as g order by g.ref
        on conflict (ref) do update set problem = excluded.problem
            where t.problem::text is distinct from excluded.problem::text
    ), before as materialized (
        select s.ref, s.parent, s.rules, s.locked from duetime.scope as s
        join given as g on g.ref = s.ref
        where g.ours and (s.parent, s.rules::text, s.locked)
            is distinct from (g.parent, g.rules::text, g.locked)
    ), written as (
        update duetime.scope as s
        set parent = g.parent, rules = g.rules, locked = g.locked, updated_at = moment
        from before as b join given as g on g.ref = b.ref where s.ref = b.ref
    )
    select array_agg(b.ref order by b.ref), jsonb_object_agg(b.ref, to_jsonb(b))
    into changed, befores from before as b;

    if cardinality(changed) > 0 then
        -- Also what another transaction made of it: resolving goes up 99 levels at most.
        looping := array(
            with recursive up as (
                select s.ref as start, s.parent as ref, 1 as level
                from duetime.scope as s where s.ref = any (changed) and s.parent is not null
                union all
                select u.start, s.parent, u.level + 1
                from up as u join duetime.scope as s on s.ref = u.ref
                where s.parent is not null and u.ref <> u.start and u.level < 99
            )
            select distinct u.start from up as u where u.ref = u.start or u.level >= 99);
        if cardinality(looping) > 0 then
            update duetime.tracked_scope as t
            set problem = duetime._row_problem(
                coalesce(array(select jsonb_array_elements((t.problem -> 'facts' -> 'problems')::jsonb)), '{}')
                || jsonb_build_object('code', 'scope_in_itself', 'facts',
                                      jsonb_build_object('parent', left(s.parent, 60))))
            from duetime.scope as s where t.ref = any (looping) and s.ref = t.ref;
            update duetime.scope as s set parent = null where s.ref = any (looping);
        end if;
        insert into duetime.audit (at, actor, action, entity, before, after)
        select moment, actor, 'scope.put', 'scope:' || s.ref, (befores -> s.ref)::json,
            json_build_object('ref', s.ref, 'parent', s.parent, 'rules', s.rules, 'locked', s.locked)
        from duetime.scope as s where s.ref = any (changed) order by s.ref;
        perform duetime._scopes_changed(changed);
    end if;
    perform duetime._scopes_gone(track, gone, true, actor);
end $$;

-- Make those of the scopes that are not there: empty. Returns whether there were any.
create or replace function duetime._make_scopes(refs text[], actor text) returns boolean
    language plpgsql as $$
declare
    missing constant text[] := array(
        select n.ref from unnest(refs) as n(ref)
        where not exists (select from duetime.scope as s where s.ref = n.ref) order by n.ref);
begin
    if cardinality(missing) = 0 then
        return false;
    end if;
    with made as (
        insert into duetime.scope (ref) select unnest(missing)
        on conflict (ref) do nothing
        returning ref
    )
    insert into duetime.audit (actor, action, entity, after)
    select actor, 'scope.put', 'scope:' || m.ref,
        json_build_object('ref', m.ref, 'parent', null, 'rules', null, 'locked', false)
    from made as m;
    return true;
end $$;

-- The rows of scopes are gone: they set nothing any more. Those with nothing inside are deleted.
-- `follow`: a row that comes back is followed again.
create or replace function duetime._scopes_gone(track text, refs text[], follow boolean, actor text)
    returns void language plpgsql as $$
#variable_conflict use_column
declare
    moment constant timestamptz := duetime.now();
    ours text[];
    around text[];
begin
    ours := array(select t.ref from duetime.tracked_scope as t
                  where t.ref = any (refs) and t.track = _scopes_gone.track
                    and coalesce(t.problem ->> 'code', '') <> 'scope_not_tracked' order by t.ref);
    delete from duetime.tracked_scope as t
    where t.ref = any (refs) and t.track = _scopes_gone.track
      and (not follow or t.ref <> all (ours));
    if cardinality(ours) = 0 then
        return;
    end if;
    perform from duetime.scope as s where s.ref = any (ours) order by s.ref for update;
    around := array(select distinct s.parent from duetime.scope as s
                    where s.ref = any (ours) and s.parent is not null);
    insert into duetime.audit (at, actor, action, entity, before)
    select moment, actor, 'scope.delete', 'scope:' || s.ref,
        json_build_object('ref', s.ref, 'parent', s.parent, 'rules', s.rules, 'locked', s.locked)
    from duetime.scope as s where s.ref = any (ours) order by s.ref;
    update duetime.scope as s set parent = null, rules = null, locked = false, updated_at = moment
    where s.ref = any (ours);
    update duetime.tracked_scope as t set problem = '{"code": "row_gone"}' where t.ref = any (ours);
    perform duetime._scopes_changed(ours);
    if follow then
        perform duetime._drop_gone_scopes(ours || around);
    else
        perform duetime._drop_scopes(ours);
        perform duetime._drop_gone_scopes(around);
    end if;
end $$;

-- Delete those of the scopes that have nothing inside and that no other transaction has locked: a user's write must not wait
-- for what can be deleted later.
create or replace function duetime._drop_scopes(refs text[]) returns void
    language plpgsql as $$
begin
    if coalesce(cardinality(refs), 0) = 0 then
        return;
    end if;
    -- A write that puts something into one of them shares its row: it is seen below, or the scope is skipped, or it waits for us.
    refs := array(select s.ref from duetime.scope as s where s.ref = any (refs)
                  order by s.ref for update skip locked);
    begin
        delete from duetime.scope as s
        where s.ref = any (refs)
          and not exists (select from duetime.scope as c where c.parent = s.ref)
          -- In the order of `subject_scope`: else the planner may prefer to read all subjects.
          and (select n.id from duetime.subject as n where n.scope = s.ref
               order by n.status, n.due_at limit 1) is null;
    exception when foreign_key_violation then
        -- This transaction has an older snapshot. What stays is empty, and does no harm.
        null;
    end;
end $$;

-- Delete those of the scopes whose rows are gone and that have nothing inside any more, unless the
-- application has put them since. What has left them otherwise, the pruner finds (`prune_scopes_look`).
create or replace function duetime._drop_gone_scopes(refs text[]) returns void
    language plpgsql as $$
begin
    refs := array(
        select s.ref from duetime.scope as s
        where s.ref = any (refs)
          and exists (select from duetime.tracked_scope as t
                      where t.ref = s.ref and t.problem ->> 'code' = 'row_gone')
        order by s.ref for update skip locked);
    -- Whether they are still gone is read once they are locked.
    perform duetime._drop_scopes(array(
        select t.ref from duetime.tracked_scope as t join duetime.scope as s on s.ref = t.ref
        where t.ref = any (refs) and t.problem ->> 'code' = 'row_gone'
          and s.parent is null and s.rules is null and not s.locked
        order by t.ref));
end $$;
