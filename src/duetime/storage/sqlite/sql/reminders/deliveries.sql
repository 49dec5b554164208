-- Statements of deliveries. Each takes one JSON document, {"now": …, "doc": …}, whose second part
-- is the same as on PostgreSQL, and gives the same columns. What PostgreSQL does in one statement
-- goes on here in `…_2`, `…_3`; the rows are those of the last.

-- name: reminder_ready
-- All that senders check right before, of many: the columns of `reminder_get`; whether another
-- reminder of the same place was sent or is being sent; what the channels did with this one in this
-- round; and the columns of `admission_read`.
with input(doc) as (select ?)
select s.rearm_at <= json_extract(i.doc, '$.now')
        or exists (select 1 from duetime_tracked_change as c where c.kind = 'scopes'),
    r.id, s.ref, s.scope, r.due_at, u.body, r.time,
    r.recipient, r.run_at, r.status, r.reason, r.job_id, s.tz, s.data, null, null, null,
    r.ended_at, r.snoozes, r.acknowledged_at, r.acknowledged_by, r.key,
    (select iif(o.status = 'sent' or o.snoozes > 0, 'sent', 'sending') || ' ' || o.id
     from duetime_reminder as o
     where o.subject_id = r.subject_id and o.due_at = r.due_at
       and (select n.name from duetime_rule as n where n.id = o.rule) = u.name
       and o.time = r.time and o.recipient = r.recipient and o.id <> r.id
       and (o.status = 'sent' or o.snoozes > 0
            or (o.status in ('superseded', 'cancelled')
                and exists (select 1 from duetime_job as j where j.id = o.job_id)
                and not exists (
                    select 1 from duetime_attempt as a where a.job_id = o.job_id
                      and a.outcome in
                          ('completed', 'dead', 'cancelled', 'superseded', 'expired'))))
     order by o.status = 'sent' or o.snoozes > 0 desc, o.id
     limit 1),
    (select json_group_array(json_array(
         d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
         d.error, d.next_at, d.sent_at, d.updated_at))
     from (select * from duetime_delivery as n
           where n.reminder_id = r.id and n.round = r.snoozes order by n.id) as d),
    json_extract(i.doc, '$.now'), p.ref, p.tz, p.channels, p.quiet, p.muted, p.max_per_hour,
    p.disabled, r.status, r.held, g.id, g.status
from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_reminder as r on r.id = e.value
cross join duetime_subject as s on s.id = r.subject_id
cross join duetime_rule as u on u.id = r.rule
left join duetime_recipient as p on p.ref = r.recipient
left join duetime_digest as g on g.id = r.digest_id;

-- name: reminder_free
-- There is one writer at a time: all that exist.
with input(doc) as (select ?)
select r.id from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_reminder as r on r.id = e.value;

-- name: reminder_hold
-- There is one writer at a time.
with input(doc) as (select ?)
select r.id from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_reminder as r on r.id = e.value;

-- name: reminder_sent
-- They were handed over.
with input(doc) as (select ?)
update duetime_reminder
set status = 'sent', ended_at = (select json_extract(doc, '$.now') from input), held = null,
    reason = iif(status = 'armed', reason,
                 json_object('code', 'sent_anyway', 'facts',
                             json_patch('{}', json_object('was', status, 'why', json(reason)))))
where id in (select json_extract(e.value, '$.id')
             from input as i cross join json_each(i.doc, '$.doc') as e)
  and status <> 'sent';

-- name: reminder_sent_2
with input(doc) as (select ?)
insert into duetime_delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   error, next_at, sent_at, updated_at)
select r.id, json_extract(g.value, '$.round'),
    json_extract(e.value, '$.channel'), json_extract(e.value, '$.key'),
    json_extract(e.value, '$.status'), json_extract(e.value, '$.attempts'),
    json_extract(e.value, '$.external_id'), json_extract(e.value, '$.error'),
    json_extract(e.value, '$.next_at'),
    iif(json_extract(e.value, '$.status') = 'sent', json_extract(i.doc, '$.now'), null),
    json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc') as g
cross join json_each(g.value, '$.deliveries') as e
cross join duetime_reminder as r on r.id = json_extract(g.value, '$.id')
where true
on conflict (reminder_id, round, channel) do update
set (status, attempts, external_id, error, next_at, sent_at, updated_at)
    = (excluded.status, excluded.attempts, excluded.external_id,
       coalesce(excluded.error, d.error), excluded.next_at, excluded.sent_at, excluded.updated_at)
where d.status = 'pending' or (d.status = 'failed' and d.sent_at is null)
returning reminder_id, channel;

-- name: delivery_write
-- What channels did with reminders that are not sent. What was accepted stays so.
with input(doc) as (select ?)
insert into duetime_delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   error, next_at, updated_at)
select json_extract(g.value, '$.id'), json_extract(g.value, '$.round'),
    json_extract(e.value, '$.channel'), json_extract(e.value, '$.key'),
    json_extract(e.value, '$.status'), json_extract(e.value, '$.attempts'),
    json_extract(e.value, '$.external_id'), json_extract(e.value, '$.error'),
    json_extract(e.value, '$.next_at'), json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc') as g
cross join json_each(g.value, '$.deliveries') as e
where exists (select 1 from duetime_reminder as r where r.id = json_extract(g.value, '$.id'))
on conflict (reminder_id, round, channel) do update
set (key, status, attempts, error, next_at, updated_at)
    = (excluded.key, excluded.status, excluded.attempts, coalesce(excluded.error, d.error),
       excluded.next_at, excluded.updated_at)
where d.status = 'pending';

-- name: delivery_give_up
-- The reminders have failed: their channels are not tried again.
with input(doc) as (select ?)
update duetime_delivery
set status = 'failed', next_at = null,
    updated_at = (select json_extract(doc, '$.now') from input)
where reminder_id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e)
  and status = 'pending';

-- name: delivery_of
with input(doc) as (select ?)
select d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
    d.error, d.next_at, d.sent_at, d.updated_at
from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_delivery as d on d.reminder_id = e.value
order by d.reminder_id, d.round, d.id;

-- name: delivery_known
-- By the receiver's id.
with input(doc) as (select ?)
select d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
    d.error, d.next_at, d.sent_at, d.updated_at, r.subject_id
from input as i
cross join duetime_delivery as d on d.external_id = json_extract(i.doc, '$.doc.external_id')
cross join duetime_reminder as r on r.id = d.reminder_id
where json_extract(i.doc, '$.doc.channel') is null
   or d.channel = json_extract(i.doc, '$.doc.channel')
order by d.id;

-- name: delivery_report
with input(doc) as (select ?)
update duetime_delivery
set status = (select json_extract(doc, '$.doc.status') from input),
    error = coalesce((select json_extract(doc, '$.doc.error') from input), error),
    updated_at = (select json_extract(doc, '$.now') from input)
where id = (select json_extract(doc, '$.doc.id') from input)
returning id;

-- name: reminder_subject
-- The subjects of reminders, and of the reminders of jobs that may have to be escalated.
with input(doc) as (select ?)
select r.subject_id from input as i cross join json_each(i.doc, '$.doc.ids') as e
cross join duetime_reminder as r on r.id = e.value
union
select r.subject_id from input as i cross join json_each(i.doc, '$.doc.jobs') as e
cross join duetime_job as j on j.id = e.value
cross join duetime_reminder as r on r.id = json_extract(j.args, '$.reminder') and r.job_id = j.id
cross join duetime_rule as u on u.id = r.rule
where r.status = 'armed' and json_extract(u.body, '$.escalate_us') is not null;

-- name: reminder_group
-- The reminders of one rule and time of a subject, to all its recipients.
with input(doc) as (select ?)
select r.id, r.recipient, r.status, r.acknowledged_by, r.job_id, r.snoozes, r.ended_at
from input as i cross join duetime_reminder as r
    on r.subject_id = json_extract(i.doc, '$.doc.subject_id')
    and r.due_at = json_extract(i.doc, '$.doc.due_at')
    and r.time = json_extract(i.doc, '$.doc.time')
cross join duetime_rule as u on u.id = r.rule and u.name = json_extract(i.doc, '$.doc.rule_id')
order by r.id;

-- name: reminder_acknowledge
with input(doc) as (select ?)
update duetime_delivery
set status = 'acknowledged', updated_at = (select json_extract(doc, '$.now') from input)
where reminder_id = (select json_extract(doc, '$.doc.id') from input)
  and status in ('sent', 'delivered');

-- name: reminder_acknowledge_2
with input(doc) as (select ?)
update duetime_reminder
set acknowledged_at = (select json_extract(doc, '$.now') from input),
    acknowledged_by = (select json_extract(doc, '$.doc.by') from input)
where id = (select json_extract(doc, '$.doc.id') from input) and acknowledged_at is null
returning id;

-- name: reminder_lasts
-- The job of a reminder, if it never expires.
with input(doc) as (select ?)
select j.id from input as i cross join duetime_job as j on j.id = json_extract(i.doc, '$.doc.job')
where j.expires_at is null;

-- name: reminder_again
-- A reminder that was sent goes out again, under another job: later, or by another channel.
with input(doc) as (select ?)
update duetime_counter set value = value + 1
where name = 'job' and (select doc from input) is not null;

-- name: reminder_again_2
with input(doc) as (select ?)
insert into duetime_new_job (id, task, run_at, args, expires_at, created_at)
select (select value from duetime_counter where name = 'job'), json_extract(i.doc, '$.doc.task'),
    json_extract(i.doc, '$.doc.run_at'), json_object('reminder', r.id),
    json_extract(i.doc, '$.doc.expires_at'),
    json_extract(i.doc, '$.now')
from input as i cross join duetime_reminder as r on r.id = json_extract(i.doc, '$.doc.id')
where r.status = 'sent';

-- name: reminder_again_3
with input(doc) as (select ?)
update duetime_reminder
set status = 'armed', run_at = (select json_extract(doc, '$.doc.run_at') from input),
    reason = (select json_extract(doc, '$.doc.reason') from input),
    snoozes = (select json_extract(doc, '$.doc.snoozes') from input),
    job_id = (select value from duetime_counter where name = 'job'),
    ended_at = null, acknowledged_at = null, acknowledged_by = null, held = null
where id = (select json_extract(doc, '$.doc.id') from input) and status = 'sent'
returning id;

-- name: scope_read
-- Scopes by name, and all around them.
with recursive input(doc) as (select ?), chain(ref, parent, level) as (
    select s.ref, s.parent, 0 from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_scope as s on s.ref = e.value
    union
    select s.ref, s.parent, c.level + 1 from chain as c cross join duetime_scope as s
        on s.ref = c.parent
    where c.level < 100
)
select s.ref, s.parent, s.rules, s.locked from duetime_scope as s
where s.ref in (select ref from chain) order by s.ref;

-- name: channel_lock
-- There is one writer at a time.
with input(doc) as (select ?)
insert into duetime_channel_rate (channel) select json_extract(doc, '$.doc.channel') from input
where true
on conflict (channel) do update set channel = excluded.channel
returning free_at;

-- name: channel_full
-- The oldest of the last uses, as many as the rate allows, if it is within the period: then there
-- is no place. And the last use.
with input(doc) as (select ?)
select
    (select u.at from duetime_channel_use as u
     where u.channel = json_extract(i.doc, '$.doc.channel')
       and u.at > json_extract(i.doc, '$.doc.since')
     order by u.at desc limit 1
     offset (select json_extract(doc, '$.doc.count') - 1 from input)),
    (select max(u.at) from duetime_channel_use as u
     where u.channel = json_extract(i.doc, '$.doc.channel'))
from input as i;

-- name: channel_take
with input(doc) as (select ?)
delete from duetime_channel_use
where channel = (select json_extract(doc, '$.doc.channel') from input)
  and at <= (select json_extract(doc, '$.doc.since') from input);

-- name: channel_take_2
with input(doc) as (select ?)
insert into duetime_channel_use (channel, at)
select json_extract(doc, '$.doc.channel'), json_extract(doc, '$.doc.at') from input;

-- name: channel_promise
with input(doc) as (select ?)
update duetime_channel_rate set free_at = (select json_extract(doc, '$.doc.free_at') from input)
where channel = (select json_extract(doc, '$.doc.channel') from input);
