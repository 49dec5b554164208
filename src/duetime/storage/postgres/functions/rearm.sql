-- Arming: make the reminders of subjects true again, any number at once.

-- A time as text, as Python writes it.
create or replace function duetime._say(moment timestamptz) returns text
    language sql stable as $$
    select to_char(moment at time zone 'UTC', case when date_trunc('second', moment) = moment
        then 'YYYY-MM-DD"T"HH24:MI:SS"Z"' else 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"' end)
$$;

-- The key under which providers know a reminder, without its prefix: what `make_reminder_key` does in
-- Python.
create or replace function duetime._reminder_key(
    installation uuid, subject text, due text, rule_id text, at timestamptz, recipient text)
    returns text language sql stable as $$
    select lpad(to_hex(floor(extract(epoch from at))::bigint + 2208988800), 10, '0')
        || left(encode(sha256(convert_to(concat_ws('|',
            left(replace(installation::text, '-', ''), 16), subject, due, rule_id, duetime._say(at),
            recipient), 'UTF8')), 'hex'), 22)
$$;

-- The reminder that a job is to send. Null: the job does something else.
create or replace function duetime._reminder_of(job duetime.job) returns bigint
    language sql immutable as $$
    select case when job.task = 'duetime' || '.remind' then (job.args ->> 'reminder')::bigint end
$$;

-- The number of a rule, which is stored when it is first used. If another transaction stores the same rule
-- now, both have a number for it, and neither waits. One that is retired may be deleted: see `prune_rules`.
create or replace function duetime._rule_number(body json) returns integer
    language plpgsql as $$
declare
    mark constant uuid := md5(jsonb_strip_nulls(body::jsonb)::text)::uuid;
    number integer;
begin
    select min(u.id) into number from duetime.rule as u where u.digest = mark and u.retired_at is null;
    if number is null then
        insert into duetime.rule as u (digest, name, body, offset_us, wall_us, at, every_us, within_us,
                                       past, expires_us, expires_at_due, zone, escalate_us)
        select mark, g.id, _rule_number.body, g.offset_us, g.wall_us, g.at, g.every_us, g.within_us,
            g.past, g.expires_us, g.expires_at_due, g.zone, g.escalate_us
        from json_to_record(_rule_number.body) as g(
            id text, offset_us bigint, wall_us bigint, at timestamptz, every_us bigint,
            within_us bigint, past text, expires_us bigint, expires_at_due boolean, zone text,
            escalate_us bigint)
        returning u.id into number;
    end if;
    return number;
end $$;

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

-- Make the armed reminders of locked subjects true again: what `ArmingStatements._rearm` does in
-- Python, for any number of subjects at once. `why` is the reason for reminders that are superseded,
-- where it does not follow from the subject itself. What SQL cannot compute is left to a worker.
-- `as_of`: when the change was made, if that was not just now: what came due since is late, not past.
create or replace function duetime.rearm(
    ids bigint[], why json default null, as_of timestamptz default null) returns void
    language plpgsql set jit = off set plan_cache_mode = auto set work_mem = '32MB'
    set enable_seqscan = off set random_page_cost = 1.1 as $$
declare
    present constant timestamptz := duetime.now();
    moment constant timestamptz := coalesce(as_of, present);
    around text[];
    zones text[];
    marked boolean;
    left_over bigint[];
    part bigint[];
    -- No rule follows the clock of a recipient that someone is changing.
    sure boolean := true;
begin
    -- A plan is worth making for many; for a few it takes longer than they do, so it is kept.
    perform set_config('plan_cache_mode',
        case when cardinality(ids) < 100 then 'force_generic_plan' else 'force_custom_plan' end, true);
    -- Here and below, the status has a form that the index of all that is open does not serve.
    select array_agg(distinct n.scope) filter (where n.open), array_agg(distinct n.tz), bool_or(n.marked)
    into around, zones, marked
    from (select n.scope, n.tz, coalesce(n.status, '') = 'open' as open,
              bool_or(n.rearm_at is not null or n.repeats is not null) as marked
          from duetime.subject as n where n.id = any (ids) group by 1, 2, 3) as n;
    -- Changes of scopes wait for us; see `scope_lock`.
    perform duetime._share_scopes(array_remove(around, null));
    zones := array(select z.tz from unnest(zones) as z(tz) where not duetime._knows_zone(z.tz));
    if marked or cardinality(zones) > 0 then
        left_over := array(
            select s.id from duetime.subject as s
            where s.id = any (ids) and coalesce(s.status, '') = 'open'
              and (s.repeats is not null or s.tz = any (zones)));
        update duetime.subject as s
        set rearm_at = case when s.id = any (left_over) then moment end
        where s.id = any (ids) and (s.rearm_at is not null or s.id = any (left_over));
    end if;
    if cardinality(left_over) > 0 then
        perform duetime.request_rearm(moment);
    end if;
    for place in 1 .. coalesce(cardinality(ids), 0) by 5000 loop
        part := ids[place : place + 4999];
        if cardinality(left_over) > 0 then
            part := array(select unnest(part) except select unnest(left_over));
        end if;
        sure := duetime._rearm_some(part, why, moment, present) and sure;
    end loop;
    if not sure then
        update duetime.subject as s
        set rearm_at = least(s.rearm_at, moment + interval '100 milliseconds')
        where s.id = any (ids) and coalesce(s.status, '') = 'open';
        perform duetime.request_rearm(present + interval '100 milliseconds');
    end if;
end $$;

-- Reminders that wait get other options. Their jobs expire by those, unless they have an expiry of their own: one
-- that was sent again on request. What is held is decided again, now.
create or replace function duetime._set_options(
    ids bigint[], rules integer[], expired_ats timestamptz[], expires_ats timestamptz[],
    present timestamptz) returns void
    language plpgsql as $$
#variable_conflict use_column
declare
    woken bigint;
begin
    with changed as (
        update duetime.reminder as r set rule = g.rule
        from unnest(ids, rules, expired_ats, expires_ats) as g(id, rule, expired_at, expires_at)
        where r.id = g.id and coalesce(r.status, '') = 'armed'
        returning r.job_id, r.held, g.expired_at, g.expires_at
    ), bounded as (
        update duetime.job as j set expires_at = c.expires_at from changed as c
        where j.id = c.job_id and j.expires_at is not distinct from c.expired_at
    ), moved as (
        update duetime.due as q set run_at = present from changed as c
        where q.job_id = c.job_id and c.held is not null and q.run_at > present
        returning q.queue
    )
    select count(duetime.wake(m.queue, present)) into woken
    from (select distinct queue from moved order by queue) as m;
end $$;

-- Returns whether the clocks of their recipients stay as they are.
create or replace function duetime._rearm_some(
    ids bigint[], why json, moment timestamptz, present timestamptz) returns boolean
    language plpgsql as $$
#variable_conflict use_column
declare
    installation constant uuid := (select i.id from duetime.installation as i);
    sure boolean := true;
    -- The scopes that the subjects are in, and the lists of rules of their own.
    around text[];
    owned text[];
    -- Of each scope: whether a lock hides the subjects' own rules, and the rules that hold.
    scopes text[];
    hides boolean[];
    holds text[];
    -- The lists of rules that occur, and the rules of each, by number.
    lists text[];
    list_numbers bigint[];
    places bigint[];
    numbers integer[];
    gone record;
    ended record;
    new record;
begin
select array_agg(distinct n.scope), array_agg(distinct n.rules) into around, owned
from (select n.scope, n.rules::text as rules from duetime.subject as n
      where n.id = any (ids) and coalesce(n.status, '') = 'open' group by 1, 2) as n;

with recursive chain as (
    select s.ref as inner_ref, s.parent, s.rules, s.locked, 1 as level
    from duetime.scope as s where s.ref = any (around)
    union all
    select c.inner_ref, s.parent, s.rules, s.locked, c.level + 1
    from chain as c join duetime.scope as s on s.ref = c.parent
    where c.level < 99
), resolved as (
    -- The outermost lock wins; from there outwards, the first that sets rules.
    select distinct on (l.inner_ref) l.inner_ref as ref, l.outermost is not null as locked,
        case when l.level >= coalesce(l.outermost, 1) then l.rules end as rules
    from (select c.*, max(c.level) filter (where c.locked) over (partition by c.inner_ref)
              as outermost
          from chain as c) as l
    order by l.inner_ref, l.rules is not null and l.level >= coalesce(l.outermost, 1) desc, l.level
)
select array_agg(x.ref), array_agg(x.locked), array_agg(x.rules::text)
into scopes, hides, holds from resolved as x;

-- Each list is read once, however many subjects have it.
lists := array(
    select l.list from unnest(holds || owned) as l(list) where l.list is not null group by 1);
select array_agg(l.number), array_agg(e.place), array_agg(duetime._rule_number(e.rule))
into list_numbers, places, numbers
from unnest(lists) with ordinality as l(list, number)
cross join json_array_elements(l.list::json) with ordinality as e(rule, place);

if exists (select from duetime.rule as u where u.id = any (numbers) and u.zone = 'recipient') then
    -- As `recipient_share`: a transaction that changes a clock waits for this one. If it came first we do
    -- not wait, since it may wait for our subjects: a worker arms them again later.
    select coalesce(bool_and(
        pg_try_advisory_xact_lock_shared(hashtext('duetime.recipient'), part.number)), true)
    into sure
    from (select distinct abs(hashtext(e.recipient) % 64) as number
          from duetime.subject as n
          cross join json_array_elements_text(n.recipients) as e(recipient)
          where n.id = any (ids) and coalesce(n.status, '') = 'open' order by number) as part;
end if;

-- What is there beside what should be, in one pass: what of it is gone, and what is new.
with list as materialized (
    select l.list, l.number from unnest(lists) with ordinality as l(list, number)
), subject as materialized (
    select s.id, s.ref, s.due_at::timestamptz as due_at, s.tz, s.status, s.recipients, s.revision,
        duetime._say(s.due_at) as due_said,
        case when s.rules is null or x.locked then l.number else o.number end as list
    from duetime.subject as s
    left join unnest(scopes, hides, holds) as x(ref, locked, rules) on x.ref = s.scope
    left join list as l on l.list = x.rules
    left join list as o on o.list = s.rules::text
    where s.id = any (ids)
), rule as materialized (
    -- Of two with the same name, the later one.
    select distinct on (l.list, u.name) l.list, u.*
    from unnest(list_numbers, places, numbers) as l(list, place, number)
    join duetime.rule as u on u.id = l.number
    order by l.list, u.name, l.place desc
), addressee as (
    select h.*, '' as recipient, 1 as place from subject as h where json_array_length(h.recipients) = 0
    union all
    select h.*, e.recipient, e.place from subject as h
    cross join lateral json_array_elements_text(h.recipients) with ordinality as e(recipient, place)
    where json_array_length(h.recipients) > 0
), timed as (
    select h.id as subject_id, h.ref, h.due_at, h.due_said, h.revision, h.recipient,
        -- Of a rule that escalates, the first is reminded; what was armed for others since stays.
        r.escalate_us is not null and h.place > 1 as later,
        r.id as rule, r.digest, r.name, r.past, r.expires_us, r.expires_at_due, t.time, t.time as newest
    from addressee as h join rule as r on r.list = h.list
    cross join lateral (
        -- A `case`: with the subject's own zone no recipient is read.
        select case when r.zone = 'recipient' then coalesce(
            (select n.tz from duetime.recipient as n
             where n.ref = h.recipient and duetime._knows_zone(n.tz)), h.tz) else h.tz end as tz
    ) as z
    cross join lateral (
        select case when r.at is not null then r.at::timestamptz
                    when r.wall_us is not null then duetime._to_instant(
                        (h.due_at at time zone duetime._named_zone(z.tz))::date
                        + (r.offset_us + r.wall_us) * interval '1 microsecond', z.tz)
                    else h.due_at + r.offset_us * interval '1 microsecond' end as time
    ) as t
    where h.status = 'open' and h.due_at is not null and r.every_us is null
    union all
    select h.id, h.ref, h.due_at, h.due_said, h.revision, h.recipient,
        r.escalate_us is not null and h.place > 1,
        r.id, r.digest, r.name, r.past, r.expires_us, r.expires_at_due, t.time,
        max(t.time) filter (where t.time < moment) over (partition by h.id, r.id, h.recipient)
    from addressee as h join rule as r on r.list = h.list
    cross join lateral generate_series(0, (r.within_us + r.every_us - 1) / r.every_us - 1) as n
    cross join lateral (
        select h.due_at + (n * r.every_us - r.within_us) * interval '1 microsecond' as time) as t
    where h.status = 'open' and h.due_at is not null and r.every_us is not null
), wanted as (
    select t.*,
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
    from (select n.*,
              case when n.expires_us is not null then n.time + n.expires_us * interval '1 microsecond'
                   when n.expires_at_due and n.time < n.due_at then n.due_at end as expires_at
          from timed as n) as t
), known as (
    select r.id, r.subject_id, r.due_at, u.name, u.digest, r.time, r.recipient, r.status,
        case when u.expires_us is not null then r.time + u.expires_us * interval '1 microsecond'
             when u.expires_at_due and r.time < r.due_at then r.due_at end as expires_at,
        s.status as subject_status, s.due_at as subject_due, s.due_said, s.recipients
    -- By their ids, however many reminders the planner expects a subject to have: if one subject has
    -- millions, it expects that of all, and would read the whole index.
    from subject as s join duetime.reminder as r on r.subject_id = s.id and r.subject_id = any (ids)
    join duetime.rule as u on u.id = r.rule
    -- One that was withdrawn under this revision is not armed again.
    where r.status not in ('superseded', 'cancelled') or r.revision = s.revision
), matched as materialized (
    -- `stays`: it is as it should be, or has ended; or it waits, and gets other options (`varies`): armed anew
    -- it would be past. `arises`: it should be there and is not.
    select w.*, k.id as known_id, k.due_at as known_due, k.recipient as known_to, k.subject_status,
        k.subject_due, k.due_said as subject_due_said, k.recipients, k.expires_at as expired_at, s.stays,
        v.varies,
        w.subject_id is not null and not s.stays and not w.later as arises
    from known as k full join wanted as w
        on w.subject_id = k.subject_id and w.due_at = k.due_at and w.name = k.name
       and w.time = k.time and w.recipient = k.recipient
    cross join lateral (
        select k.status = 'armed' and k.digest <> w.digest and k.time < present as varies) as v
    cross join lateral (
        select k.id is not null and (k.status <> 'armed' or k.digest is not distinct from w.digest
                                     or coalesce(v.varies, false)) as stays) as s
)
select array_agg(m.known_id) filter (where not m.stays and m.known_id is not null) as ids,
    array_agg(case when m.subject_status <> 'open' then 'cancelled' else 'superseded' end)
        filter (where not m.stays and m.known_id is not null) as statuses,
    array_agg(case
        when m.subject_status <> 'open' then coalesce(why, json_build_object('code', 'subject_completed'))
        when m.subject_due is null then json_build_object('code', 'subject_without_due')
        when m.subject_due <> m.known_due then json_build_object('code', 'subject_moved',
            'facts', json_build_object('to', m.subject_due_said))
        when m.known_to <> '' and not exists (
               select from json_array_elements_text(m.recipients) as e(recipient)
               where e.recipient = m.known_to)
            then json_build_object('code', 'recipient_removed')
        else coalesce(why, json_build_object('code', 'rule_removed')) end)
        filter (where not m.stays and m.known_id is not null) as reasons,
    array_agg(m.subject_id) filter (where m.arises) as subject_ids,
    array_agg(m.revision) filter (where m.arises) as revisions,
    array_agg(m.due_at::timestamptz) filter (where m.arises) as dues,
    array_agg(m.rule) filter (where m.arises) as rules,
    array_agg(m.time::timestamptz) filter (where m.arises) as times,
    array_agg(m.recipient) filter (where m.arises) as recipients,
    array_agg(m.run_at::timestamptz) filter (where m.arises) as runs,
    array_agg(m.status) filter (where m.arises) as new_statuses,
    array_agg(m.reason) filter (where m.arises) as new_reasons,
    array_agg(m.expires_at::timestamptz) filter (where m.arises) as expiries,
    array_agg(duetime._reminder_key(installation, m.ref, m.due_said, m.name, m.time, m.recipient))
        filter (where m.arises) as keys,
    array_agg(m.known_id) filter (where m.varies) as varied,
    array_agg(m.rule) filter (where m.varies) as varied_rules,
    array_agg(m.expired_at::timestamptz) filter (where m.varies) as varied_from,
    array_agg(m.expires_at::timestamptz) filter (where m.varies) as varied_to
into new
from matched as m;

if new.ids is not null then
    with gone as (
        -- One that was snoozed has been sent.
        update duetime.reminder as r
        set status = case when r.snoozes > 0 then 'sent' else m.status end,
            reason = case when r.snoozes > 0 then json_build_object('code', 'sent_before', 'facts',
                              json_build_object('why', m.reason))
                          else m.reason end,
            ended_at = present
        from unnest(new.ids, new.statuses, new.reasons) as m(id, status, reason)
        where r.id = m.id and coalesce(r.status, '') = 'armed'
        returning r.job_id, r.reason
    )
    select array_agg(g.job_id) as ids, array_agg(g.reason) as reasons into gone from gone as g;
    select count(*) as count into ended
    from duetime._end_waiting(gone.ids, 'superseded', reasons => gone.reasons);
end if;

if new.varied is not null then
    perform duetime._set_options(
        new.varied, new.varied_rules, new.varied_from, new.varied_to, present);
end if;

if new.subject_ids is not null then
    with given as materialized (
        select g.*, nextval('duetime.reminder_id_seq') as id,
            case when g.run_at is not null then nextval('duetime.job_id_seq') end as job_id
        from unnest(new.subject_ids, new.revisions, new.dues, new.rules, new.times, new.recipients,
                    new.runs, new.new_statuses, new.new_reasons, new.expiries, new.keys)
            as g(subject_id, revision, due_at, rule, time, recipient, run_at, status, reason,
                 expires_at, key)
    ), fresh as (
        insert into duetime.reminder (id, key, subject_id, due_at, rule, time, recipient, revision,
                                      run_at, status, reason, job_id, created_at, ended_at)
        select g.id, g.key::uuid, g.subject_id, g.due_at, g.rule, g.time, g.recipient, g.revision,
            g.run_at, g.status, g.reason, g.job_id, present,
            case when g.job_id is null then present end
        from given as g
    )
    select duetime._add_jobs(array_agg(duetime._new_job(
            g.job_id, 'duetime' || '.remind', g.run_at, json_build_object('reminder', g.id),
            queue => t.queue, priority => t.priority, max_attempts => t.max_attempts,
            timeout => t.timeout, expires_at => g.expires_at)), complete => true, moment => present)
    into ended
    from duetime._task_options('duetime' || '.remind') as t cross join given as g
    where g.job_id is not null;
end if;
return sure;
end $$;
