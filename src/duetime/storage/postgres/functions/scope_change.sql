-- Changes of scopes. A change stores one row, whatever is below the scope; workers arm the subjects below
-- again, some at a time. A subject is outdated while a scope around it has a change that the subject was
-- not armed under, and nothing is sent for it meanwhile.

-- The number of the last change. Read it while the scopes around a subject are locked: then every change of
-- them has a number up to this one, or will get a higher one.
create or replace function duetime._changes_made() returns bigint
    language sql volatile as $$
    select coalesce(pg_sequence_last_value('duetime.scope_change_id_seq'), 0)
$$;

-- Whether a scope, or one around it, has a change that the subject was not armed under.
create or replace function duetime._is_outdated(scope text, armed_under bigint) returns boolean
    language plpgsql stable as $$
begin
    if scope is null
        or not exists (select from duetime.scope_change as c where c.id > _is_outdated.armed_under)
    then
        return false;
    end if;
    return exists (
        with recursive chain as (
            select s.ref, s.parent, 1 as level from duetime.scope as s
            where s.ref = _is_outdated.scope
            union all
            select s.ref, s.parent, n.level + 1
            from chain as n join duetime.scope as s on s.ref = n.parent
            where n.level < 100
        )
        select from duetime.scope_change as c
        where c.id > _is_outdated.armed_under and c.scope in (select n.ref from chain as n));
end $$;

-- A scope and all scopes inside it.
create or replace function duetime._scopes_below(ref text) returns text[]
    language sql stable as $$
    with recursive below as (
        select _scopes_below.ref as ref
        union
        select s.ref from duetime.scope as s join below as b on s.parent = b.ref
    )
    select array_agg(b.ref order by b.ref) from below as b
$$;

-- Keep the scopes of subjects, and those around them, from being changed until this transaction ends.
create or replace function duetime._share_scopes(names text[]) returns void
    language plpgsql as $$
begin
    perform from duetime.scope as s
    where s.ref in (
        with recursive chain as (
            select s.ref, s.parent, 1 as level from duetime.scope as s where s.ref = any (names)
            union
            select s.ref, s.parent, c.level + 1
            from duetime.scope as s join chain as c on s.ref = c.parent
            where c.level < 100
        )
        select c.ref from chain as c)
    order by s.ref for share;
end $$;

-- A scope was written by this transaction: arm the open subjects of it and of all scopes inside it again. A few
-- are armed at once: all, or those that are reminded of within the next minute. The others are left to workers.
-- Returns how many there are, counted up to 200,000.
create or replace function duetime.scope_changed(ref text) returns integer
    language plpgsql set jit = off set enable_seqscan = off as $$
declare
    few constant integer := 500;
    moment constant timestamptz := duetime.now();
    below constant text[] := duetime._scopes_below(ref);
    -- Else this transaction may not see all subjects that were put before it got the scope.
    sees_all constant boolean := current_setting('transaction_isolation') = 'read committed';
    number bigint;
    total integer;
    ids bigint[];
begin
    select count(*) into total
    from (select from duetime.subject as s
          where s.scope = any (below) and s.status = 'open' limit 200000) as n;
    if total = 0 and sees_all then
        return 0;
    end if;
    -- The number is taken while the scope's row is ours: see `_changes_made`.
    insert into duetime.scope_change as c (scope, at) values (scope_changed.ref, moment)
    returning c.id into number;
    if total <= few then
        ids := array(select s.id from duetime.subject as s
                     where s.scope = any (below) and s.status = 'open');
    else
        ids := array(
            select n.id from duetime._resolve_rules(scope_changed.ref) as r
            cross join unnest(below) as b(ref)
            cross join lateral (
                select s.id from duetime.subject as s
                where s.scope = b.ref and s.status = 'open'
                  and s.due_at >= moment - r.offset_us * interval '1 microsecond'
                  and s.due_at < moment - r.offset_us * interval '1 microsecond' + interval '1 minute'
                order by s.due_at limit few) as n
            where r.at is null and r.wall_us is null and r.every_us is null
            limit few);
    end if;
    ids := duetime._rearm_outdated(ids, number, moment);
    if total <= few and cardinality(ids) = 0 and sees_all then
        delete from duetime.scope_change as c where c.id = number;
    else
        perform duetime.request_rearm(moment);
    end if;
    return total;
end $$;

-- The rules that hold in a scope.
create or replace function duetime._resolve_rules(ref text) returns setof duetime.rule
    language plpgsql as $$
declare
    numbers integer[];
begin
    with recursive chain as (
        select s.parent, s.rules, s.locked, 1 as level
        from duetime.scope as s where s.ref = _resolve_rules.ref
        union all
        select s.parent, s.rules, s.locked, c.level + 1
        from chain as c join duetime.scope as s on s.ref = c.parent
        where c.level < 99
    ), holding as (
        select c.rules from chain as c
        where c.rules is not null
          and c.level >= coalesce((select max(l.level) from chain as l where l.locked), 1)
        order by c.level limit 1
    )
    select array_agg(duetime._rule_number(e.rule)) into numbers
    from holding as h cross join json_array_elements(h.rules) as e(rule);
    return query select u.* from duetime.rule as u where u.id = any (numbers);
end $$;

-- As `_share_scopes`, in turn with those who change them. Returns false if somebody has changed one of them and has
-- not committed yet.
create or replace function duetime._share_free_scopes(names text[]) returns boolean
    language plpgsql set lock_timeout = '100ms' as $$
begin
    if cardinality(names) <= 100 then
        perform duetime._share_turn(names);
    end if;
    perform duetime._share_scopes(names);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- Arm again those of the subjects that were armed under a change before this one, as of the time of the first change
-- that they were not armed under, else `as_of`: what came due since is late, not past. Returns those that are left,
-- since others have locked them or their scopes.
create or replace function duetime._rearm_outdated(
    ids bigint[], change_id bigint, as_of timestamptz) returns bigint[]
    language plpgsql as $$
#variable_conflict use_column
declare
    names constant text[] := array(select distinct s.scope from duetime.subject as s
                                   where s.id = any (ids) and s.scope is not null order by 1);
    why constant json := json_build_object('code', 'rules_changed');
    made bigint;
    mine bigint[] := '{}';
    since timestamptz;
    part bigint[];
begin
    -- Scopes before subjects, as everyone does.
    if duetime._share_free_scopes(names) then
        made := duetime._changes_made();
        mine := array(
            select s.id from duetime.subject as s
            where s.id = any (ids) and coalesce(s.status, '') = 'open' and s.armed_under < change_id
              and s.scope = any (names)
            order by s.id for update skip locked);
    end if;
    if (select count(*) from duetime.scope_change) > 1 then
        for since, part in
            with recursive chain as (
                select s.ref as scope, s.ref, s.parent, 1 as level from duetime.scope as s
                where s.ref = any (names)
                union all
                select n.scope, s.ref, s.parent, n.level + 1
                from chain as n join duetime.scope as s on s.ref = n.parent
                where n.level < 100
            ), outdated as materialized (
                select s.id, s.scope, s.armed_under from duetime.subject as s where s.id = any (mine)
            ), first as materialized (
                select o.scope, o.armed_under, min(c.at) as at
                from (select distinct o.scope, o.armed_under from outdated as o) as o
                join chain as n on n.scope = o.scope
                join duetime.scope_change as c on c.scope = n.ref and c.id > o.armed_under
                group by 1, 2
            )
            select coalesce(f.at, as_of) as at, array_agg(o.id order by o.id)
            from outdated as o
            left join first as f on f.scope = o.scope and f.armed_under = o.armed_under
            group by 1 order by 1
        loop
            perform duetime._rearm_under(part, made, why, since);
        end loop;
    elsif cardinality(mine) > 0 then
        perform duetime._rearm_under(mine, made, why, as_of);
    end if;
    return array(select s.id from duetime.subject as s
                 where s.id = any (ids) and s.id <> all (mine) and coalesce(s.status, '') = 'open'
                   and s.armed_under < change_id and s.scope is not null);
end $$;

-- Arm subjects again, under the changes made so far.
create or replace function duetime._rearm_under(
    ids bigint[], made bigint, why json, as_of timestamptz) returns void
    language plpgsql as $$
begin
    -- A revision of its own: what comes back is armed again, beside what it was.
    update duetime.subject as s set revision = s.revision + 1, armed_under = made
    where s.id = any (ids);
    perform duetime.rearm(ids, why, as_of);
end $$;

-- Go on with a change: list the subjects below the scope, nearest first, or arm the next of them. Each call is
-- one transaction; others may do the same at the same time. Of several changes, the nearest subjects come first. What
-- others have locked is tried again after all the rest. Returns how many were armed; -1 if others have locked them and
-- nothing else is left; null if there is nothing to do.
create or replace function duetime.follow_changes(most integer) returns integer
    language plpgsql set jit = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
    -- What was tried before has a place from here on, higher with each time.
    again constant bigint := 1000000000;
    change duetime.scope_change;
    part duetime.scope_change_part;
    below text[];
    left_over bigint[];
begin
    select * into change from duetime.scope_change as c where c.total is null
    order by c.id limit 1 for update skip locked;
    if found then
        below := duetime._scopes_below(change.scope);
        with rule as materialized (
            select * from duetime._resolve_rules(change.scope)
        ), listed as (
            select s.id, (row_number() over (order by n.next, s.due_at, s.id) - 1) / most as place
            from duetime.subject as s
            cross join lateral (
                -- When it is reminded of next, to the day for wall times. One that repeats may be at once.
                select case when s.due_at is null then change.at else coalesce(
                    min(t.time) filter (where t.time >= change.at - interval '1 day'), 'infinity')
                    end as next
                from rule as r cross join lateral (
                    select case
                        when r.at is not null then r.at
                        when r.every_us is null then s.due_at + r.offset_us * interval '1 microsecond'
                        when s.due_at > change.at
                            then greatest(s.due_at - r.within_us * interval '1 microsecond', change.at)
                        end as time) as t
            ) as n
            where s.scope = any (below) and s.status = 'open'
              and s.armed_under < change.id
        ), kept as (
            insert into duetime.scope_change_part (change_id, place, ids)
            select change.id, l.place, array_agg(l.id) from listed as l group by l.place
            returning cardinality(ids) as count
        )
        update duetime.scope_change as c set total = (select coalesce(sum(k.count), 0) from kept as k)
        where c.id = change.id;
        return 0;
    end if;
    select p.* into part from duetime.scope_change_part as p
    order by p.place, p.change_id limit 1 for update skip locked;
    if not found then
        delete from duetime.scope_change as c
        where c.total is not null
          and not exists (select from duetime.scope_change_part as p where p.change_id = c.id);
        return null;
    end if;
    select * into change from duetime.scope_change as c where c.id = part.change_id;
    left_over := duetime._rearm_outdated(part.ids, change.id, change.at);
    if cardinality(left_over) = 0 then
        delete from duetime.scope_change_part as p
        where p.change_id = part.change_id and p.place = part.place;
    else
        update duetime.scope_change_part as p set ids = left_over, place = part.place + again
        where p.change_id = part.change_id and p.place = part.place;
    end if;
    return case when part.place >= again and cardinality(left_over) = cardinality(part.ids) then -1
                else cardinality(part.ids) - cardinality(left_over) end;
end $$;
