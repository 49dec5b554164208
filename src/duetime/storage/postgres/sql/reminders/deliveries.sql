-- Statements of deliveries. Each takes one JSON document; those of the same name on SQLite take the
-- same, and give the same columns.

-- name: reminder_ready
-- All that senders check right before, of many: the columns of `reminder_get`; whether another
-- reminder of the same place was sent or is being sent; what the channels did with this one in this
-- round; and the columns of `admission_read`. Indexes: the primary keys, the unique index of
-- reminders, of deliveries.
select coalesce(s.rearm_at <= (select duetime.now()), false)
        or duetime._is_outdated(s.scope, s.armed_under), r.id, s.ref, s.scope, r.due_at, u.body::text, r.time,
    r.recipient, r.run_at, r.status, r.reason::text, r.job_id, s.tz, s.data::text, null, null, null,
    r.ended_at, r.snoozes, r.acknowledged_at, r.acknowledged_by, 'dtr_' || replace(r.key::text, '-', ''),
    (select case when o.status = 'sent' or o.snoozes > 0 then 'sent' else 'sending' end
         || ' ' || o.id
     from duetime.reminder as o join duetime.rule as n on n.id = o.rule
     where o.subject_id = r.subject_id and o.due_at = r.due_at and n.name = u.name
       and o.time = r.time and o.recipient = r.recipient and o.id <> r.id
       and (o.status = 'sent' or o.snoozes > 0
            or (o.status in ('superseded', 'cancelled')
                and exists (select from duetime.job as j where j.id = o.job_id)
                and not exists (
                    select from duetime.attempt as a where a.job_id = o.job_id
                      and a.outcome in
                          ('completed', 'dead', 'cancelled', 'superseded', 'expired'))))
     order by o.status = 'sent' or o.snoozes > 0 desc, o.id
     limit 1),
    (select json_agg(json_build_array(
         d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
         d.error::text, d.next_at, d.sent_at, d.updated_at) order by d.id)::text
     from duetime.delivery as d where d.reminder_id = r.id and d.round = r.snoozes),
    duetime.now(), p.ref, p.tz, p.channels::text, p.quiet, p.muted::text, p.max_per_hour,
    p.disabled::text, r.status, r.held, g.id, g.status
from duetime.reminder as r
join duetime.subject as s on s.id = r.subject_id
join duetime.rule as u on u.id = r.rule
left join duetime.recipient as p on p.ref = r.recipient
left join duetime.digest as g on g.id = r.digest_id
where r.id = any (array(select value::bigint from json_array_elements_text(%s::json)));

-- name: reminder_free
-- Holds those that no other transaction changes at the moment. One that holds several and waits for none
-- cannot deadlock with a change of their subjects, which takes them in another order.
select r.id from duetime.reminder as r
where r.id = any (array(select value::bigint from json_array_elements_text(%s::json)))
for no key update skip locked;

-- name: reminder_hold
-- Waits for who changes them just now; then, and only then, their deliveries may be written. In the
-- order in which digests take them.
select r.id from duetime.reminder as r
where r.id = any (array(select value::bigint from json_array_elements_text(%s::json)))
order by r.id for no key update;

-- name: reminder_sent
-- They were handed over: the reminders and what their channels did, in one statement. Returns what
-- was recorded. What a receipt reported before that (then it has `sent_at`) stays.
with input as materialized (
    select * from json_to_recordset(%s::json) as g(id bigint, round integer, deliveries json)
), marked as (
    update duetime.reminder as r
    set status = 'sent', ended_at = duetime.now(), held = null,
        reason = case when r.status = 'armed' then r.reason
                      else json_build_object('code', 'sent_anyway', 'facts', json_strip_nulls(
                          json_build_object('was', r.status, 'why', r.reason))) end
    from input as g where r.id = g.id and r.status <> 'sent'
)
insert into duetime.delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   error, next_at, sent_at, updated_at)
select g.id, g.round, n.channel, n.key, n.status, n.attempts, n.external_id, n.error, n.next_at,
    case when n.status = 'sent' then duetime.now() end, duetime.now()
from input as g cross join lateral json_to_recordset(g.deliveries) as n(
    channel text, key text, status text, attempts integer, external_id text, error json,
    next_at timestamptz)
where exists (select from duetime.reminder as r where r.id = g.id)
on conflict (reminder_id, round, channel) do update
set (status, attempts, external_id, error, next_at, sent_at, updated_at)
    = (excluded.status, excluded.attempts, excluded.external_id,
       coalesce(excluded.error, d.error), excluded.next_at, excluded.sent_at, excluded.updated_at)
where d.status = 'pending' or (d.status = 'failed' and d.sent_at is null)
returning d.reminder_id, d.channel;

-- name: delivery_write
-- What channels did with reminders that are not sent. What was accepted stays so.
insert into duetime.delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   error, next_at, updated_at)
select g.id, g.round, n.channel, n.key, n.status, n.attempts, n.external_id, n.error, n.next_at,
    duetime.now()
from json_to_recordset(%s::json) as g(id bigint, round integer, deliveries json)
cross join lateral json_to_recordset(g.deliveries) as n(
    channel text, key text, status text, attempts integer, external_id text, error json,
    next_at timestamptz)
where exists (select from duetime.reminder as r where r.id = g.id)
on conflict (reminder_id, round, channel) do update
set (key, status, attempts, error, next_at, updated_at)
    = (excluded.key, excluded.status, excluded.attempts, coalesce(excluded.error, d.error),
       excluded.next_at, excluded.updated_at)
where d.status = 'pending';

-- name: delivery_give_up
-- The reminders have failed: their channels are not tried again.
update duetime.delivery set status = 'failed', next_at = null, updated_at = duetime.now()
where reminder_id = any (array(select value::bigint from json_array_elements_text(%s::json)))
  and status = 'pending';

-- name: delivery_of
select d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
    d.error::text, d.next_at, d.sent_at, d.updated_at
from duetime.delivery as d
where d.reminder_id = any (array(select value::bigint from json_array_elements_text(%s::json)))
order by d.reminder_id, d.round, d.id;

-- name: delivery_known
-- By the receiver's id: the delivery, and its subject, which is locked first.
select d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
    d.error::text, d.next_at, d.sent_at, d.updated_at, r.subject_id
from json_to_record(%s::json) as g(external_id text, channel text)
join duetime.delivery as d
    on d.external_id = g.external_id and (g.channel is null or d.channel = g.channel)
join duetime.reminder as r on r.id = d.reminder_id
order by d.id;

-- name: delivery_report
update duetime.delivery as d
set status = g.status, error = coalesce(g.error, d.error), updated_at = duetime.now()
from json_to_record(%s::json) as g(id bigint, status text, error json)
where d.id = g.id
returning d.id;

-- name: reminder_subject
-- The subjects of reminders, and of the reminders of jobs that may have to be escalated.
with input as materialized (
    select array(select value::bigint from json_array_elements_text(g.ids)) as ids,
        array(select value::bigint from json_array_elements_text(g.jobs)) as jobs
    from json_to_record(%s::json) as g(ids json, jobs json)
)
select r.subject_id from duetime.reminder as r
where r.id = any ((select ids from input)::bigint[])
union
select r.subject_id from duetime.job as j
join duetime.reminder as r on r.id = duetime._reminder_of(j) and r.job_id = j.id
join duetime.rule as u on u.id = r.rule
where j.id = any ((select jobs from input)::bigint[])
  and coalesce(r.status, '') = 'armed' and u.escalate_us is not null;

-- name: reminder_group
-- The reminders of one rule and time of a subject, to all its recipients.
select r.id, r.recipient, r.status, r.acknowledged_by, r.job_id, r.snoozes, r.ended_at
from json_to_record(%s::json) as g(
    subject_id bigint, due_at timestamptz, rule_id text, time timestamptz)
join duetime.reminder as r on r.subject_id = g.subject_id and r.due_at = g.due_at
    and r.time = g.time
join duetime.rule as u on u.id = r.rule and u.name = g.rule_id
order by r.id;

-- name: reminder_acknowledge
with input as materialized (
    select * from json_to_record(%s::json) as g(id bigint, by text)
), seen as (
    update duetime.delivery as d set status = 'acknowledged', updated_at = duetime.now()
    from input as g where d.reminder_id = g.id and d.status in ('sent', 'delivered')
)
update duetime.reminder as r set acknowledged_at = duetime.now(), acknowledged_by = g.by
from input as g where r.id = g.id and r.acknowledged_at is null
returning r.id;

-- name: reminder_lasts
-- The job of a reminder, if it never expires. Index: the primary key.
select j.id from duetime.job as j
where j.id = (%s::json ->> 'job')::bigint and j.expires_at is null;

-- name: reminder_again
-- A reminder that was sent goes out again, under another job: later, or by another channel.
with given as materialized (
    select g.*, nextval('duetime.job_id_seq') as job_id
    from json_to_record(%s::json) as g(
        id bigint, run_at timestamptz, reason json, snoozes integer, task text,
        expires_at timestamptz)
), armed as (
    update duetime.reminder as r
    set status = 'armed', run_at = g.run_at, reason = g.reason, snoozes = g.snoozes,
        job_id = g.job_id, ended_at = null, acknowledged_at = null, acknowledged_by = null, held = null
    from given as g where r.id = g.id and r.status = 'sent'
    returning r.id
), made as materialized (
    select duetime._add_jobs(array_agg(duetime._new_job(
        g.job_id, g.task, g.run_at, json_build_object('reminder', g.id),
        expires_at => g.expires_at)))
    from armed as a join given as g on g.id = a.id
)
select a.id from made join armed as a on true;

-- name: scope_read
-- Scopes by name, and all around them, unlocked: who holds a subject must not wait for scopes. A
-- change of them that is under way arms the subject anew when it gets it.
with recursive chain as (
    select s.ref, s.parent, 0 as level from duetime.scope as s
    where s.ref = any (array(select value from json_array_elements_text(%s::json)))
    union
    select s.ref, s.parent, c.level + 1 from duetime.scope as s join chain as c on s.ref = c.parent
    where c.level < 100
)
select s.ref, s.parent, s.rules::text, s.locked from duetime.scope as s
where s.ref in (select ref from chain) order by s.ref;

-- name: channel_lock
-- A sender that wants a place waits here for earlier ones; the next statement sees the places that they took.
insert into duetime.channel_rate as c (channel) select %s::json ->> 'channel'
on conflict (channel) do update set channel = excluded.channel
returning c.free_at;

-- name: channel_full
-- The oldest of the last uses, as many as the rate allows, if it is within the period: then there
-- is no place. And the last use. Index: channel_use_at.
select
    (select u.at from duetime.channel_use as u where u.channel = g.channel and u.at > g.since
     order by u.at desc offset g.count - 1 limit 1),
    (select max(u.at) from duetime.channel_use as u where u.channel = g.channel)
from json_to_record(%s::json) as g(channel text, count integer, since timestamptz);

-- name: channel_take
with input as materialized (
    select * from json_to_record(%s::json) as g(channel text, at timestamptz, since timestamptz)
), old as (
    delete from duetime.channel_use as u using input as g
    where u.channel = g.channel and u.at <= g.since
)
insert into duetime.channel_use (channel, at) select g.channel, g.at from input as g;

-- name: channel_promise
update duetime.channel_rate as c set free_at = g.free_at
from json_to_record(%s::json) as g(channel text, free_at timestamptz)
where c.channel = g.channel;
