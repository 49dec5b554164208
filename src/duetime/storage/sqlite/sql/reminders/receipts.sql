-- Statements of receipts that come early. Each takes one JSON document, {"now": …, "doc": …}, and
-- gives the same columns as on PostgreSQL.

-- name: receipt_keyed
-- The reminders with a key: several, if one was withdrawn and armed again.
with input(doc) as (select ?)
select r.id from input as i cross join duetime_reminder as r
    on r.key = json_extract(i.doc, '$.doc.key')
order by r.id;

-- name: receipt_early
-- The channel accepted them, as its receiver reports; the sender has not recorded that yet.
with input(doc) as (select ?)
insert into duetime_delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   sent_at, updated_at)
select json_extract(e.value, '$.id'), json_extract(e.value, '$.round'),
    json_extract(e.value, '$.channel'), json_extract(e.value, '$.key'), 'sent', 1,
    json_extract(e.value, '$.external_id'), json_extract(i.doc, '$.now'),
    json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc') as e where true
on conflict (reminder_id, round, channel) do update
set (key, status, external_id, next_at, sent_at, updated_at)
    = (excluded.key, excluded.status, excluded.external_id, null, excluded.sent_at,
       excluded.updated_at)
where d.status in ('pending', 'failed') or d.key <> excluded.key;

-- name: receipt_digest
-- What has the key of a digest.
with input(doc) as (select ?)
select d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
    d.error, d.next_at, d.sent_at, d.updated_at
from input as i cross join duetime_delivery as d on d.key = json_extract(i.doc, '$.doc.key')
where substr(d.key, 1, 4) = 'dtd_'
order by d.id;

-- name: receipt_known_as
with input(doc) as (select ?)
update duetime_delivery set external_id = (select json_extract(doc, '$.doc.external_id') from input)
where id = (select json_extract(doc, '$.doc.id') from input) and external_id is null;

-- name: reminder_report
-- It was sent, as its receiver reports, although its answer was lost. One that a worker sends just
-- now, alone or in a digest, is left to that worker. Its job has nothing left to do.
with input(doc) as (select ?)
update duetime_counter set value = value + 1 from input where name = 'token';

-- name: reminder_report_2
with input(doc) as (select ?)
update duetime_reminder
set status = 'sent', ended_at = (select json_extract(doc, '$.now') from input), held = null,
    reason = (select json_extract(doc, '$.doc.reason') from input)
where id = (select json_extract(doc, '$.doc.id') from input) and status <> 'sent'
  and (status <> 'armed'
       or (digest_id is null
           and (exists (select 1 from duetime_due as d where d.job_id = duetime_reminder.job_id)
                or exists (select 1 from duetime_parked as p
                           where p.job_id = duetime_reminder.job_id))));

-- name: reminder_report_3
with input(doc) as (select ?)
insert into duetime_attempt (job_id, token, attempt, outcome, finished_at)
select d.job_id, (select value from duetime_counter where name = 'token'), d.attempt, 'completed',
    json_extract(i.doc, '$.now')
from input as i
cross join duetime_reminder as r on r.id = json_extract(i.doc, '$.doc.id') and r.status = 'sent'
cross join (select job_id, attempt from duetime_due
            union all select job_id, attempt from duetime_parked) as d on d.job_id = r.job_id;

-- name: reminder_report_4
with input(doc) as (select ?)
delete from duetime_due where job_id in (
    select r.job_id from input as i cross join duetime_reminder as r
        on r.id = json_extract(i.doc, '$.doc.id') and r.status = 'sent');

-- name: reminder_report_5
with input(doc) as (select ?)
delete from duetime_parked where job_id in (
    select r.job_id from input as i cross join duetime_reminder as r
        on r.id = json_extract(i.doc, '$.doc.id') and r.status = 'sent');

-- name: reminder_report_6
with input(doc) as (select ?)
select r.id from input as i cross join duetime_reminder as r
    on r.id = json_extract(i.doc, '$.doc.id') and r.status = 'sent';
