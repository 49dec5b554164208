-- Arming: make the reminders of subjects true again, any number at once.

-- A time as text, as Python writes it.
create or replace function duetime._say(moment timestamptz) returns text
    language sql stable as $$
    select to_char(moment at time zone 'UTC', case when date_trunc('second', moment) = moment
        then 'YYYY-MM-DD"T"HH24:MI:SS"Z"' else 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"' end)
$$;

-- The key under which providers know a reminder: what `make_reminder_key` does in Python.
create or replace function duetime._reminder_key(
    installation uuid, subject text, due text, rule_id text, said_time text, recipient text)
    returns text language sql stable as $$
    select 'dtr_' || left(encode(sha256(convert_to(concat_ws('|',
        left(replace(installation::text, '-', ''), 16), subject, due, rule_id, said_time,
        recipient), 'UTF8')), 'hex'), 32)
$$;

-- A zone under a name that PostgreSQL does not read as an abbreviation: those have one offset all the
-- year round. Of the names of zones, only these four mean something else as abbreviations.
create or replace function duetime._named_zone(zone text) returns text
    language sql immutable as $$
    select case zone when 'CET' then 'Europe/Brussels' when 'MET' then 'Europe/Brussels'
        when 'EET' then 'Europe/Athens' when 'WET' then 'Europe/Lisbon' else zone end
$$;

-- The first moment at which the clocks of a zone show `wall` or later. Where clocks go forward over
-- it, that is the first moment after the gap; where they show it twice, the first of both.
create or replace function duetime._to_instant(wall timestamp, tz text) returns timestamptz
    language plpgsql stable as $$
declare
    zone constant text := duetime._named_zone(tz);
    guess constant timestamptz := wall at time zone zone;
    -- In hours, not days: a day of the session's own zone may be shorter.
    before constant timestamptz := guess - interval '24 hours';
    earlier timestamptz;
    low timestamptz;
    high timestamptz;
    middle timestamptz;
    after interval;
begin
    if guess at time zone zone = wall then
        -- Of two, PostgreSQL returns the second: try the offset of the day before.
        earlier := (wall - (before at time zone zone - before at time zone 'UTC')) at time zone 'UTC';
        if earlier < guess and earlier at time zone zone = wall then
            return earlier;
        end if;
        return guess;
    end if;
    -- In a gap, PostgreSQL reckons with the offset before it, so `guess` lies after the gap, by
    -- less than its length. Clocks change at whole seconds.
    low := date_trunc('second', guess - (guess at time zone zone - wall));
    high := date_trunc('second', guess);
    after := high at time zone zone - high at time zone 'UTC';
    while high - low > interval '1 second' loop
        middle := date_trunc('second', low + (high - low) / 2);
        if middle at time zone zone - middle at time zone 'UTC' = after then
            high := middle;
        else
            low := middle;
        end if;
    end loop;
    return high;
end $$;

-- Whether this server knows a time zone; Python may know newer ones.
create or replace function duetime._knows_zone(tz text) returns boolean
    language plpgsql stable as $$
begin
    perform timestamp '2000-01-01' at time zone tz;
    return true;
exception when invalid_parameter_value then
    return false;
end $$;

-- Have a worker re-arm the subjects whose `rearm_at` is at most `at`: one job of the task that
-- every worker knows, in the queue of the reminders. Call it in the transaction that sets the mark.
create or replace function duetime.request_rearm(at timestamptz) returns void
    language plpgsql as $$
declare
    lane constant text := (select o.queue from duetime._task_options('duetime' || '.remind') as o);
begin
    perform duetime._add_jobs(array[duetime._new_job(
        nextval('duetime.job_id_seq'), 'duetime' || '.rearm', at, '{}', queue => lane,
        priority => 0, max_attempts => 1000)], complete => true);
end $$;

-- Make the armed reminders of locked subjects true again: what `ReminderStatements._rearm` does in
-- Python, for any number of subjects at once. `why` is the reason for reminders that are superseded,
-- where it does not follow from the subject itself. What SQL cannot compute is left to a worker.
create or replace function duetime.rearm(ids bigint[], why json default null) returns void
    language plpgsql set jit = off set plan_cache_mode = auto set work_mem = '32MB' as $$
declare
    moment constant timestamptz := duetime.now();
    left_over bigint[];
    part bigint[];
    -- No rule follows the clock of a recipient that someone is changing.
    sure boolean := true;
begin
    -- A plan is worth making for many; for a few it takes longer than they do, so it is kept.
    perform set_config('plan_cache_mode',
        case when cardinality(ids) < 100 then 'force_generic_plan' else 'force_custom_plan' end, true);
    -- Changes of scopes wait for us; see `scope_lock`.
    perform from duetime.scope as s
    where s.ref in (
        with recursive chain as (
            select s.ref, s.parent, 1 as level from duetime.scope as s
            where s.ref in (select n.scope from duetime.subject as n
                            where n.id = any (ids) and n.status = 'open')
            union
            select s.ref, s.parent, c.level + 1
            from duetime.scope as s join chain as c on s.ref = c.parent
            where c.level < 100
        )
        select c.ref from chain as c)
    order by s.ref for share;
    if exists (
        with recursive chain as (
            select s.ref, s.parent, s.rules, 1 as level from duetime.scope as s
            where s.ref in (select n.scope from duetime.subject as n
                            where n.id = any (ids) and n.status = 'open')
            union all
            select s.ref, s.parent, s.rules, c.level + 1
            from duetime.scope as s join chain as c on s.ref = c.parent
            where c.level < 100
        )
        select from chain as c cross join json_array_elements(c.rules) as e(rule)
        where e.rule ->> 'zone' = 'recipient'
        union all
        select from duetime.subject as n cross join json_array_elements(n.rules) as e(rule)
        where n.id = any (ids) and n.status = 'open' and e.rule ->> 'zone' = 'recipient')
    then
        -- As `recipient_share`: a transaction that changes a clock waits for this one. If it came
        -- first we do not wait, since it may wait for our subjects: a worker arms them again later.
        select coalesce(bool_and(
            pg_try_advisory_xact_lock_shared(hashtext('duetime.recipient'), part.number)), true)
        into sure
        from (select distinct abs(hashtext(e.recipient) % 64) as number
              from duetime.subject as n
              cross join json_array_elements_text(n.recipients) as e(recipient)
              where n.id = any (ids) and n.status = 'open' order by number) as part;
    end if;
    left_over := array(
        select s.id from duetime.subject as s
        where s.id = any (ids) and s.status = 'open'
          and (s.repeats is not null or not duetime._knows_zone(s.tz)));
    update duetime.subject as s
    set rearm_at = case when s.id = any (left_over) then moment end
    where s.id = any (ids) and (s.rearm_at is not null or s.id = any (left_over));
    if cardinality(left_over) > 0 then
        perform duetime.request_rearm(moment);
    end if;
    for place in 1 .. coalesce(cardinality(ids), 0) by 5000 loop
        part := ids[place : place + 4999];
        if cardinality(left_over) > 0 then
            part := array(select unnest(part) except select unnest(left_over));
        end if;
        perform duetime._rearm_some(part, why, moment);
    end loop;
    if not sure then
        update duetime.subject as s
        set rearm_at = least(s.rearm_at, moment + interval '100 milliseconds')
        where s.id = any (ids) and s.status = 'open';
        perform duetime.request_rearm(moment + interval '100 milliseconds');
    end if;
end $$;

create or replace function duetime._rearm_some(ids bigint[], why json, moment timestamptz) returns void
    language plpgsql as $$
#variable_conflict use_column
declare
    done record;
begin
with recursive subject as materialized (
    select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules, s.recipients, s.revision,
        duetime._say(s.due_at) as due_said
    from duetime.subject as s where s.id = any (ids)
), active as materialized (
    select * from subject as s where s.status = 'open' and s.due_at is not null
), chain as (
    select s.ref as inner_ref, s.ref, s.parent, s.rules, s.locked, 1 as level
    from duetime.scope as s where s.ref in (select scope from active)
    union all
    select c.inner_ref, s.ref, s.parent, s.rules, s.locked, c.level + 1
    from chain as c join duetime.scope as s on s.ref = c.parent
    where c.level < 99
), resolved as materialized (
    -- For each scope: whether a lock hides the subject's own rules, and the rules that hold. The
    -- outermost lock wins; from there outwards, the first that sets rules.
    select distinct on (l.inner_ref) l.inner_ref as ref, l.outermost is not null as locked,
        case when l.level >= coalesce(l.outermost, 1) then l.rules end as rules
    from (select c.*, max(c.level) filter (where c.locked) over (partition by c.inner_ref)
              as outermost
          from chain as c) as l
    order by l.inner_ref, l.rules is not null and l.level >= coalesce(l.outermost, 1) desc, l.level
), shared_rule as materialized (
    select distinct on (x.ref, g.id) x.ref, x.locked, e.rule, g.*
    from resolved as x
    cross join json_array_elements(x.rules) with ordinality as e(rule, place)
    cross join json_to_record(e.rule) as g(
        id text, offset_us bigint, wall_us bigint, at timestamptz, every_us bigint,
        within_us bigint, past text, expires_us bigint, expires_at_due boolean, zone text,
        escalate_us bigint)
    -- Of two with the same id, the later one.
    order by x.ref, g.id, e.place desc
), own_rule as materialized (
    select distinct on (s.id, g.id) s.id as subject_id, e.rule, g.*
    from active as s left join resolved as x on x.ref = s.scope
    cross join json_array_elements(s.rules) with ordinality as e(rule, place)
    cross join json_to_record(e.rule) as g(
        id text, offset_us bigint, wall_us bigint, at timestamptz, every_us bigint,
        within_us bigint, past text, expires_us bigint, expires_at_due boolean, zone text,
        escalate_us bigint)
    where s.rules is not null and not coalesce(x.locked, false)
    order by s.id, g.id, e.place desc
), holding as (
    select s.id as subject_id, s.due_at, s.tz, s.recipients, r.id as rule_id, r.rule, r.offset_us,
        r.wall_us, r.at, r.every_us, r.within_us, r.past, r.expires_us, r.expires_at_due, r.zone,
        r.escalate_us
    from active as s join shared_rule as r on r.ref = s.scope
    where s.rules is null or r.locked
    union all
    select s.id, s.due_at, s.tz, s.recipients, r.id, r.rule, r.offset_us, r.wall_us, r.at,
        r.every_us, r.within_us, r.past, r.expires_us, r.expires_at_due, r.zone, r.escalate_us
    from active as s join own_rule as r on r.subject_id = s.id
), timed as (
    select h.subject_id, h.due_at, h.rule_id, h.rule, h.past, w.recipient, w.later, t.time, t.newest,
        case when h.expires_us is not null then t.time + h.expires_us * interval '1 microsecond'
             when h.expires_at_due and t.time < h.due_at then h.due_at end as expires_at
    from holding as h
    cross join lateral (
        -- Of a rule that escalates, the first is reminded; what was armed for others since stays.
        select e.recipient, h.escalate_us is not null and e.place > 1 as later
        from json_array_elements_text(h.recipients) with ordinality as e(recipient, place)
        union all
        select '', false where json_array_length(h.recipients) = 0
    ) as w
    cross join lateral (
        -- A `case`: with the subject's own zone no recipient is read.
        select case when h.zone = 'recipient' then coalesce(
            (select n.tz from duetime.recipient as n
             where n.ref = w.recipient and duetime._knows_zone(n.tz)), h.tz) else h.tz end as tz
    ) as z
    cross join lateral (
        select h.at as time, h.at as newest where h.at is not null
        union all
        select n.time, n.time
        from (select duetime._to_instant(
                (h.due_at at time zone duetime._named_zone(z.tz))::date
                + (h.offset_us + h.wall_us) * interval '1 microsecond', z.tz) as time
              where h.wall_us is not null) as n
        union all
        select n.time, max(n.time) filter (where n.time < moment) over ()
        from (select h.due_at + (n * h.every_us - h.within_us) * interval '1 microsecond' as time
              from generate_series(0, (h.within_us + h.every_us - 1) / h.every_us - 1) as n
              where h.every_us is not null) as n
        union all
        select n.time, n.time
        from (select h.due_at + h.offset_us * interval '1 microsecond' as time
              where h.at is null and h.wall_us is null and h.every_us is null) as n
    ) as t
), wanted as materialized (
    select t.subject_id, t.due_at, t.rule_id, t.rule, t.time, t.recipient, t.later, t.expires_at,
        case when t.time >= moment then t.time
             when t.past = 'skip' or t.expires_at <= moment or t.time <> t.newest then null
             else moment end as run_at,
        case when t.time >= moment then 'armed'
             when t.past = 'skip' then 'skipped'
             when t.expires_at <= moment then 'expired'
             when t.time <> t.newest then 'skipped'
             else 'armed' end as status,
        case when t.time < moment then
            case when t.past = 'skip' then json_build_object('code', 'past_skipped', 'facts',
                     json_build_object('time', duetime._say(t.time)))
                 when t.expires_at <= moment then json_build_object('code', 'past_expired', 'facts',
                     json_build_object('time', duetime._say(t.time),
                                       'expires_at', duetime._say(t.expires_at)))
                 when t.time <> t.newest then json_build_object('code', 'past_replaced', 'facts',
                     json_build_object('time', duetime._say(t.time)))
                 else json_build_object('code', 'past_sent', 'facts',
                     json_build_object('time', duetime._say(t.time))) end
            end as reason
    from timed as t
), known as materialized (
    select r.id, r.subject_id, r.due_at, r.rule_id, r.time, r.recipient, r.status, r.rule
    from duetime.reminder as r
    where r.subject_id = any (ids) and r.status <> 'superseded' and r.status <> 'cancelled'
), matched as materialized (
    -- What is there beside what should be. `holds`: it is, and nothing has to be done.
    select k.id as known_id, k.subject_id as known_of, k.due_at as known_due,
        k.recipient as known_to, k.status as known_status, w.subject_id, w.due_at, w.rule_id,
        w.rule, w.time, w.recipient, w.later, w.expires_at, w.run_at, w.status, w.reason,
        case when k.id is null then false
             when k.status <> 'armed' then true
             when w.subject_id is null then false
             else k.rule::text = w.rule::text
                  or jsonb_strip_nulls(k.rule::jsonb) = jsonb_strip_nulls(w.rule::jsonb)
             end as holds
    from known as k full join wanted as w
        on w.subject_id = k.subject_id and w.due_at = k.due_at and w.rule_id = k.rule_id
       and w.time = k.time and w.recipient = k.recipient
), gone as materialized (
    -- One that was snoozed has been sent.
    update duetime.reminder as r
    set status = case when r.snoozes > 0 then 'sent' else m.status end,
        reason = case when r.snoozes > 0 then json_build_object('code', 'sent_before', 'facts',
                          json_build_object('why', m.reason))
                      else m.reason end,
        ended_at = moment
    from (
        select m.known_id,
            case when s.status <> 'open' then 'cancelled' else 'superseded' end as status,
            case when s.status <> 'open' then coalesce(why, json_build_object('code', 'subject_completed'))
                 when s.due_at is null then json_build_object('code', 'subject_without_due')
                 when s.due_at <> m.known_due then json_build_object('code', 'subject_moved',
                     'facts', json_build_object('to', s.due_said))
                 when m.known_to <> '' and not exists (
                        select from json_array_elements_text(s.recipients) as e(recipient)
                        where e.recipient = m.known_to)
                     then json_build_object('code', 'recipient_removed')
                 else coalesce(why, json_build_object('code', 'rule_removed')) end as reason
        from matched as m join subject as s on s.id = m.known_of
        where m.known_status = 'armed' and not m.holds
    ) as m
    where r.id = m.known_id and coalesce(r.status, '') = 'armed'
    returning r.job_id, r.reason
), ended as materialized (
    select duetime._end_waiting(array_agg(g.job_id), 'superseded', reasons => array_agg(g.reason))
    from gone as g
), given as materialized (
    select m.*, s.revision, nextval('duetime.reminder_id_seq') as id,
        case when m.run_at is not null then nextval('duetime.job_id_seq') end as job_id,
        duetime._reminder_key(i.id, s.ref, s.due_said, m.rule_id, duetime._say(m.time), m.recipient)
            as key
    from matched as m join subject as s on s.id = m.subject_id cross join duetime.installation as i
    where not m.holds and not m.later
), fresh as (
    insert into duetime.reminder (id, key, subject_id, due_at, rule_id, rule, time, recipient,
                                  revision, run_at, status, reason, job_id, created_at, ended_at)
    select g.id, g.key, g.subject_id, g.due_at, g.rule_id, g.rule, g.time, g.recipient, g.revision,
        g.run_at, g.status, g.reason, g.job_id, moment, case when g.job_id is null then moment end
    from given as g
    on conflict (subject_id, due_at, rule_id, time, recipient, revision) do nothing
    returning id, job_id
)
select duetime._add_jobs(array_agg(duetime._new_job(
        g.job_id, 'duetime' || '.remind', g.run_at, json_build_object('reminder', g.id),
        queue => t.queue, priority => t.priority, key => g.key, max_attempts => t.max_attempts,
        timeout => t.timeout, expires_at => g.expires_at)), complete => true, moment => moment),
    (select count(*) from ended)
into done
from duetime._task_options('duetime' || '.remind') as t
cross join fresh as f join given as g on g.id = f.id where f.job_id is not null;
end $$;

-- The rules of a scope changed: re-arm the open subjects of it and of all scopes inside it, some at
-- a time. Returns how many those were, and the last.
create or replace function duetime.rearm_below(
    ref text, after bigint, most integer, why json, out count integer, out last bigint)
    language plpgsql as $$
#variable_conflict use_column
declare
    ids bigint[];
begin
    ids := array(
        with recursive below as (
            select rearm_below.ref as ref
            union
            select s.ref from duetime.scope as s join below as b on s.parent = b.ref
        )
        select n.id from below as b cross join lateral (
            select s.id from duetime.subject as s
            where s.scope = b.ref and s.status = 'open' and s.id > after
            order by s.id limit most
        ) as n
        order by n.id limit most);
    perform from duetime.subject as s where s.id = any (ids) order by s.id for update;
    -- A revision of its own: what comes back is armed again, beside what it was.
    update duetime.subject as s set revision = s.revision + 1 where s.id = any (ids);
    perform duetime.rearm(ids, why);
    count := cardinality(ids);
    last := ids[count];
end $$;
