-- Statements of what is sent again on request. Each takes one JSON document,
-- {"now": …, "doc": …}, and gives the same columns as on PostgreSQL.

-- name: resend_twin
-- Another reminder of the same place that was sent.
with input(doc) as (select ?)
select o.id from input as i cross join duetime_reminder as r on r.id = json_extract(i.doc, '$.doc.id')
cross join duetime_rule as u on u.id = r.rule
cross join duetime_reminder as o
    on o.subject_id = r.subject_id and o.due_at = r.due_at
    and o.time = r.time and o.recipient = r.recipient and o.id <> r.id
cross join duetime_rule as n on n.id = o.rule and n.name = u.name
where o.status = 'sent' or o.snoozes > 0
order by o.id desc limit 1;

-- name: resend_taken
-- Whether a channel took it in this round, whatever it reported later.
with input(doc) as (select ?)
select exists (select 1 from duetime_delivery as d
               where d.reminder_id = json_extract(i.doc, '$.doc.id')
                 and d.round = json_extract(i.doc, '$.doc.round') and d.sent_at is not null)
    or exists (select 1 from duetime_reminder as r
               where r.id = json_extract(i.doc, '$.doc.id') and r.status = 'sent')
from input as i;

-- name: resend
-- Armed again, under another job, which may expire. Channels that gave up are tried anew. If it
-- is another message, those whose answer was lost keep the key: their receivers may have it.
with input(doc) as (select ?)
update duetime_counter set value = value + 1
where name = 'job' and (select doc from input) is not null;

-- name: resend_2
with input(doc) as (select ?)
update duetime_delivery
set status = 'pending', attempts = 0, error = null, next_at = null,
    updated_at = (select json_extract(doc, '$.now') from input)
where reminder_id = (select json_extract(doc, '$.doc.id') from input)
  and round = (select json_extract(doc, '$.doc.snoozes') from input)
  and status in ('failed', 'pending');

-- name: resend_3
with input(doc) as (select ?)
insert into duetime_new_job (id, task, run_at, args, expires_at, created_at)
select (select value from duetime_counter where name = 'job'), json_extract(i.doc, '$.doc.task'),
    json_extract(i.doc, '$.doc.run_at'), json_object('reminder', r.id),
    json_extract(i.doc, '$.doc.expires_at'),
    json_extract(i.doc, '$.now')
from input as i cross join duetime_reminder as r on r.id = json_extract(i.doc, '$.doc.id')
where r.status <> 'armed';

-- name: resend_4
with input(doc) as (select ?)
insert into duetime_delivery (reminder_id, round, channel, key, status, attempts, updated_at)
select d.reminder_id, json_extract(i.doc, '$.doc.snoozes'), d.channel, d.key, 'pending', 0,
    json_extract(i.doc, '$.now')
from input as i cross join duetime_delivery as d
    on d.reminder_id = json_extract(i.doc, '$.doc.id')
    and d.round = json_extract(i.doc, '$.doc.snoozes') - 1
where json_extract(i.doc, '$.doc.taken') and d.sent_at is null and d.attempts > 0
  and substr(d.key, 1, 4) <> 'dtd_'
on conflict (reminder_id, round, channel) do nothing;

-- name: resend_5
with input(doc) as (select ?)
update duetime_reminder
set status = 'armed', run_at = (select json_extract(doc, '$.doc.run_at') from input),
    reason = (select json_extract(doc, '$.doc.reason') from input),
    snoozes = (select json_extract(doc, '$.doc.snoozes') from input),
    job_id = (select value from duetime_counter where name = 'job'),
    ended_at = null, acknowledged_at = null, acknowledged_by = null, held = null, digest_id = null
where id = (select json_extract(doc, '$.doc.id') from input) and status <> 'armed'
returning id;

-- name: resend_find
-- Reminders that finished with a status, some at a time.
with recursive input(doc) as (select ?), below(ref) as (
    select json_extract(doc, '$.doc.scope') from input
    where json_extract(doc, '$.doc.scope') is not null
    union
    select s.ref from below as b cross join duetime_scope as s on s.parent = b.ref
)
select r.id from input as i
cross join duetime_reminder as r on r.status = json_extract(i.doc, '$.doc.status')
    and r.id > json_extract(i.doc, '$.doc.after')
cross join duetime_subject as s on s.id = r.subject_id
where r.status in ('failed', 'expired', 'skipped')
  and s.ref = coalesce(json_extract(i.doc, '$.doc.subject'), s.ref)
  and (json_extract(i.doc, '$.doc.scope') is null or s.scope in (select ref from below))
  and r.recipient = coalesce(json_extract(i.doc, '$.doc.recipient'), r.recipient)
  and r.ended_at >= coalesce(json_extract(i.doc, '$.doc.since'), r.ended_at)
order by r.id limit 500;
