-- Changes that concern many subjects: of a scope with many below it, and of many subjects that one statement or
-- one `put_many` writes. A change stores one row; workers arm its subjects, some at a time. A subject is outdated while
-- it waits for the change that it was written with (`armed_under` is its number, negated), or while a scope around it has a
-- change that the subject was not armed under. Nothing is sent for it meanwhile.

-- The number of the last change. Read it while the scopes around a subject are locked: then every change of
-- them has a number up to this one, or will get a higher one.
create or replace function duetime._changes_made() returns bigint
    language sql volatile as $$
    select coalesce(pg_sequence_last_value('duetime.bulk_change_id_seq'), 0)
$$;

-- Whether the subject waits for a change, or its scope, or one around it, has one that it was not armed under.
create or replace function duetime._is_outdated(scope text, armed_under bigint) returns boolean
    language plpgsql stable as $$
begin
    if armed_under < 0 then
        return true;
    end if;
    if scope is null
        or not exists (select from duetime.bulk_change as c where c.id > _is_outdated.armed_under)
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
        select from duetime.bulk_change as c
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
    language plpgsql as $$
declare
    change record;
begin
    select * into change from duetime._scope_changed(ref, 500);
    if change.is_left then
        perform duetime.request_rearm(duetime.now());
    end if;
    return change.total;
end $$;

-- As `scope_changed`, of some scopes. So few are armed at once as if they were one: a statement may write thousands of them.
create or replace function duetime._scopes_changed(refs text[]) returns void
    language plpgsql as $$
declare
    few integer := 500;
    are_left boolean := false;
    ref text;
    change record;
begin
    foreach ref in array refs loop
        select * into change from duetime._scope_changed(ref, few);
        few := few - least(few, change.total);
        are_left := are_left or change.is_left;
    end loop;
    if are_left then
        perform duetime.request_rearm(duetime.now());
    end if;
end $$;

-- `few`: if there are no more, all are armed at once. `is_left`: workers have to arm some.
create or replace function duetime._scope_changed(
    ref text, few integer, out total integer, out is_left boolean)
    language plpgsql set jit = off set enable_seqscan = off as $$
declare
    most_soon constant integer := 500;
    moment constant timestamptz := duetime.now();
    below constant text[] := duetime._scopes_below(ref);
    -- Else this transaction may not see all subjects that were put before it got the scope.
    sees_all constant boolean := current_setting('transaction_isolation') = 'read committed';
    number bigint;
    ids bigint[];
begin
    select count(*) into total
    from (select from duetime.subject as s
          where s.scope = any (below) and s.status = 'open' limit 200000) as n;
    is_left := false;
    if total = 0 and sees_all then
        return;
    end if;
    -- The number is taken while the scope's row is ours: see `_changes_made`.
    insert into duetime.bulk_change as c (scope, at) values (_scope_changed.ref, moment)
    returning c.id into number;
    if total <= few then
        ids := array(select s.id from duetime.subject as s
                     where s.scope = any (below) and s.status = 'open');
    else
        ids := array(
            select n.id from duetime._resolve_rules(_scope_changed.ref) as r
            cross join unnest(below) as b(ref)
            cross join lateral (
                select s.id from duetime.subject as s
                where s.scope = b.ref and s.status = 'open'
                  and s.due_at >= moment - r.offset_us * interval '1 microsecond'
                  and s.due_at < moment - r.offset_us * interval '1 microsecond' + interval '1 minute'
                order by s.due_at limit most_soon) as n
            where r.at is null and r.wall_us is null and r.every_us is null
            limit most_soon);
    end if;
    if total <= few or cardinality(ids) > 0 then
        ids := duetime._rearm_outdated(ids, number, moment);
    end if;
    if total <= few and cardinality(ids) = 0 and sees_all then
        delete from duetime.bulk_change as c where c.id = number;
    else
        is_left := true;
    end if;
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

-- As `_share_scopes`, unless somebody changes one of them or waits to: then it returns false. It never waits for
-- their turn: the caller may have changed a scope, which the one whose turn it is waits for.
create or replace function duetime._share_free_scopes(names text[]) returns boolean
    language plpgsql set lock_timeout = '100ms' as $$
begin
    if cardinality(names) <= 100 and exists (
        select from unnest(names) as n(ref)
        where not pg_try_advisory_xact_lock_shared(hashtext('duetime.scope'), hashtext(n.ref)))
    then
        return false;
    end if;
    perform duetime._share_scopes(names);
    return true;
exception when lock_not_available then
    return false;
end $$;

-- Arm again those of the subjects that were armed under a change before this one, as of the time of the change that
-- they wait for or of the first one that they were not armed under, else `as_of`: what came due since is late, not
-- past. Returns those that are left, since others have locked them or their scopes.
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
              and (s.scope = any (names) or (s.scope is null and s.armed_under < 0))
            order by s.id for update skip locked);
    end if;
    if (select count(*) from duetime.bulk_change) > 1 then
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
            ), kind as materialized (
                select distinct o.scope, o.armed_under from outdated as o
            ), first as materialized (
                select c.scope, c.armed_under, min(c.at) as at
                from (select k.scope, k.armed_under, c.at from kind as k
                      join duetime.bulk_change as c on c.id = -k.armed_under
                      where k.armed_under < 0
                      union all
                      select k.scope, k.armed_under, c.at from kind as k
                      join chain as n on n.scope = k.scope
                      join duetime.bulk_change as c on c.scope = n.ref and c.id > k.armed_under
                      where k.armed_under >= 0) as c(scope, armed_under, at)
                group by 1, 2
            )
            select coalesce(f.at, as_of) as at, array_agg(o.id order by o.id)
            from outdated as o
            left join first as f on f.scope is not distinct from o.scope and f.armed_under = o.armed_under
            group by 1 order by 1
        loop
            perform duetime._rearm_under(part, made, why, since);
        end loop;
    elsif cardinality(mine) > 0 then
        perform duetime._rearm_under(mine, made, why, as_of);
    end if;
    return array(select s.id from duetime.subject as s
                 where s.id = any (ids) and s.id <> all (mine) and coalesce(s.status, '') = 'open'
                   and s.armed_under < change_id and (s.scope is not null or s.armed_under < 0));
end $$;

-- Arm those of the subjects that a change has not reached, and that were to be reminded of since then: before they are
-- written again, since to what is written now that is past. Those that others have locked, or their scopes, stay as they are.
create or replace function duetime._catch_up(ids bigint[]) returns void
    language plpgsql as $$
declare
    since timestamptz;
    last bigint;
    changed text[];
    waited bigint[];
    late bigint[];
begin
    -- Who wrote many subjects has armed what is due within a minute itself.
    select min(c.at), max(c.id), array_agg(distinct c.scope) filter (where c.scope is not null),
        array_agg(-c.id) filter (where c.scope is null and c.at < duetime.now() - interval '1 minute')
    into since, last, changed, waited from duetime.bulk_change as c;
    if last is null then
        return;
    end if;
    -- Few are below a scope that has changed; of the others, a glance is enough.
    changed := array(
        with recursive below as (
            select unnest(changed) as ref
            union
            select s.ref from duetime.scope as s join below as b on s.parent = b.ref
        )
        select b.ref from below as b);
    late := array(
        select s.id from duetime.subject as s
        where s.id = any (ids) and coalesce(s.status, '') = 'open' and s.repeats is null
          and (s.armed_under = any (waited)
               or s.scope = any (changed) and duetime._is_outdated(s.scope, s.armed_under)));
    if cardinality(late) > 0 then
        late := array(select n.id from duetime._nearest(late, since) as n where n.next <= duetime.now());
        if cardinality(late) > 0 then
            perform duetime._rearm_outdated(late, last + 1, since);
        end if;
    end if;
end $$;

-- Arm subjects again, under the changes made so far.
create or replace function duetime._rearm_under(
    ids bigint[], made bigint, why json, as_of timestamptz) returns void
    language plpgsql as $$
begin
    -- A revision of its own: what comes back is armed again, beside what it was. One that was written together with
    -- others has it.
    update duetime.subject as s set revision = s.revision + (s.armed_under >= 0)::integer, armed_under = made
    where s.id = any (ids);
    perform duetime.rearm(ids, why, as_of);
end $$;

-- Subjects in the order in which they are reminded of next, after `since`. The rules of all levels count, though one
-- level may hide those of another: some subjects come sooner than needed. So do those that repeat, and those
-- whose rules send at once what is past.
create or replace function duetime._nearest(ids bigint[], since timestamptz)
    returns table (id bigint, next timestamptz, place bigint) language sql stable as $$
    with recursive chosen as materialized (
        select s.id, coalesce(s.scope, '') as scope, coalesce(s.rules::text, '[]') as own, s.tz,
            s.due_at::timestamptz as due_at
        from duetime.subject as s where s.id = any (ids)
    ), kind as materialized (
        -- Of many subjects, few differ in these.
        select c.scope, c.own, c.tz, row_number() over () as number,
            duetime._named_zone(case when duetime._knows_zone(c.tz) then c.tz else 'UTC' end) as zone
        from (select distinct c.scope, c.own, c.tz from chosen as c) as c
    ), chain as (
        select k.scope, s.parent, s.rules, 1 as level
        from (select distinct k.scope from kind as k) as k join duetime.scope as s on s.ref = k.scope
        union all
        select c.scope, s.parent, s.rules, c.level + 1
        from chain as c join duetime.scope as s on s.ref = c.parent
        where c.level < 99
    ), rule as materialized (
        select l.number, r.*
        from (select k.number, k.own::json as rules from kind as k
              union all
              select k.number, c.rules from kind as k join chain as c on c.scope = k.scope
              where c.rules is not null) as l
        cross join json_to_recordset(l.rules) as r(
            offset_us bigint, wall_us bigint, at timestamptz, every_us bigint, within_us bigint, past text)
    ), timed as (
        select c.id, min(case when t.time >= since then t.time
                              when r.past = 'send_now' then since + interval '1 minute' end) as next
        from chosen as c join kind as k on k.scope = c.scope and k.own = c.own and k.tz = c.tz
        join rule as r on r.number = k.number
        cross join lateral (select c.due_at + r.offset_us * interval '1 microsecond' as time) as o
        cross join lateral (
            select case
                when r.at is not null then r.at
                when r.every_us is not null then case when c.due_at > since
                    then greatest(c.due_at - r.within_us * interval '1 microsecond', since) end
                -- Exact only where it matters: it takes as long as the rest.
                when r.wall_us is not null
                    and o.time between since - interval '2 days' and since + interval '2 days'
                    then duetime._to_instant((c.due_at at time zone k.zone)::date
                        + (r.offset_us + r.wall_us) * interval '1 microsecond', k.zone)
                else o.time end as time) as t
        group by c.id
    )
    select c.id, n.next,
        row_number() over (order by n.next, c.due_at, c.id) - 1
    from chosen as c left join timed as t on t.id = c.id
    cross join lateral (
        select case when c.due_at is null then since else coalesce(t.next, 'infinity') end as next) as n
$$;

-- Whether a transaction that writes so many subjects leaves them to workers. With the setting, however few they are.
create or replace function duetime._arms_later(count integer) returns boolean
    language sql stable as $$
    select count > 5000 or (count > 0 and current_setting('duetime.arm_later', true) = 'true')
$$;

-- Begin a change of subjects that this transaction writes, too many to be armed by it: each gets the number that is
-- returned, negated, as `armed_under`.
create or replace function duetime._begin_change() returns bigint
    language sql volatile as $$
    insert into duetime.bulk_change as c (at, total) values (duetime.now(), 0) returning c.id
$$;

-- All subjects of such a change are written: these. The nearest, as far as they are reminded of within the next minute,
-- are armed at once, and so are all if they are few. The others are left to workers.
create or replace function duetime._end_change(number bigint, ids bigint[]) returns void
    language plpgsql set jit = off set work_mem = '32MB' set enable_seqscan = off set random_page_cost = 1.1 as $$
#variable_conflict use_column
declare
    moment constant timestamptz := duetime.now();
    -- The scopes around them are locked: see `_changes_made`.
    made constant bigint := duetime._changes_made();
    soon bigint[] := ids;
    listed integer := 0;
begin
    if duetime._arms_later(cardinality(ids)) then
        with nearest as materialized (
            select n.id, n.place, n.next < moment + interval '1 minute' and n.place < 5000 as soon
            from duetime._nearest(ids, moment) as n
        ), parts as (
            insert into duetime.bulk_change_part (change_id, place, ids)
            select number, n.place / 2000, array_agg(n.id) from nearest as n where not n.soon group by n.place / 2000
            returning cardinality(ids) as count
        )
        select (select sum(p.count) from parts as p),
            array(select n.id from nearest as n where n.soon order by n.id)
        into listed, soon;
    end if;
    if cardinality(soon) > 0 then
        update duetime.subject as s set armed_under = made where s.id = any (soon);
        perform duetime.rearm(soon);
    end if;
    if listed > 0 then
        update duetime.bulk_change as c set total = listed where c.id = number;
        perform duetime.request_rearm(moment);
    else
        delete from duetime.bulk_change as c where c.id = number;
    end if;
end $$;

-- Go on with changes: list the subjects below the scopes of some, nearest first, or arm the next of them. Each call is
-- one transaction; others may do the same at the same time. Of several changes, the nearest subjects come first. What
-- others have locked is tried again after all the rest. Returns how many were armed; -1 if others have locked them and
-- nothing else is left; null if there is nothing to do.
create or replace function duetime.follow_changes(most integer) returns integer
    language plpgsql set jit = off set enable_seqscan = off as $$
#variable_conflict use_column
declare
    -- What was tried before has a place from here on, higher with each time.
    again constant bigint := 1000000000;
    change duetime.bulk_change;
    part duetime.bulk_change_part;
    listed bigint := 0;
    has_listed boolean := false;
    below text[];
    left_over bigint[];
begin
    -- One statement may change thousands of scopes, with a few subjects each.
    while listed < most loop
        select * into change from duetime.bulk_change as c where c.total is null
        order by c.id limit 1 for update skip locked;
        exit when not found;
        below := duetime._scopes_below(change.scope);
        with listed as (
            select n.id, n.place / most as place
            from duetime._nearest(array(
                select s.id from duetime.subject as s
                where s.scope = any (below) and s.status = 'open' and s.armed_under < change.id), change.at) as n
        ), kept as (
            insert into duetime.bulk_change_part (change_id, place, ids)
            select change.id, l.place, array_agg(l.id) from listed as l group by l.place
            returning cardinality(ids) as count
        )
        update duetime.bulk_change as c set total = (select coalesce(sum(k.count), 0) from kept as k)
        where c.id = change.id returning listed + c.total, true into listed, has_listed;
    end loop;
    if has_listed then
        return 0;
    end if;
    select p.* into part from duetime.bulk_change_part as p
    order by p.place, p.change_id limit 1 for update skip locked;
    if not found then
        delete from duetime.bulk_change as c
        where c.total is not null
          and not exists (select from duetime.bulk_change_part as p where p.change_id = c.id);
        return null;
    end if;
    select * into change from duetime.bulk_change as c where c.id = part.change_id;
    left_over := duetime._rearm_outdated(part.ids, change.id, change.at);
    if cardinality(left_over) = 0 then
        delete from duetime.bulk_change_part as p
        where p.change_id = part.change_id and p.place = part.place;
    else
        update duetime.bulk_change_part as p set ids = left_over, place = part.place + again
        where p.change_id = part.change_id and p.place = part.place;
    end if;
    return case when part.place >= again and cardinality(left_over) = cardinality(part.ids) then -1
                else cardinality(part.ids) - cardinality(left_over) end;
end $$;
