-- Statements of digests.

-- name: digest_open
-- The digest of a recipient to which more may be added, and when its job is due (null: it runs).
with input(doc) as (select ?)
select d.id, d.job_id, q.run_at,
    q.run_at is null
        and not exists (select 1 from duetime_parked as k where k.job_id = d.job_id)
        and not exists (select 1 from duetime_claim as c where c.job_id = d.job_id)
from duetime_digest as d left join duetime_due as q on q.job_id = d.job_id
where d.recipient = (select json_extract(doc, '$.doc.ref') from input) and d.status = 'waiting';

-- name: digest_add
-- A digest with its job.
with input(doc) as (select ?)
update duetime_counter set value = value + 1 from input where name in ('digest', 'job');

-- name: digest_add_2
with input(doc) as (select ?)
insert into duetime_digest (id, recipient, job_id, created_at)
select (select value from duetime_counter where name = 'digest'), json_extract(doc, '$.doc.ref'),
    (select value from duetime_counter where name = 'job'), json_extract(doc, '$.now')
from input;

-- name: digest_add_3
with input(doc) as (select ?)
insert into duetime_new_job (id, task, run_at, args, key, created_at)
select (select value from duetime_counter where name = 'job'), json_extract(i.doc, '$.doc.task'),
    json_extract(i.doc, '$.doc.run_at'),
    json_object('digest', (select value from duetime_counter where name = 'digest')),
    'dtd_' || json_extract(i.doc, '$.doc.installation') || '_'
        || (select value from duetime_counter where name = 'digest'),
    json_extract(i.doc, '$.now')
from input as i;

-- name: digest_add_4
with input(doc) as (select ?)
select (select value from duetime_counter where name = 'digest'),
    (select value from duetime_counter where name = 'job')
from input;

-- name: digest_move
-- Its job is due earlier; no row if it does not wait.
with input(doc) as (select ?)
update duetime_due
set run_at = min(run_at, (select json_extract(doc, '$.doc.run_at') from input))
where job_id = (select json_extract(doc, '$.doc.job') from input)
returning job_id;

-- name: digest_get
with input(doc) as (select ?)
select d.id, d.recipient, d.status, d.job_id
from duetime_digest as d where d.id = (select json_extract(doc, '$.doc.id') from input);

-- name: digest_lock
-- As `digest_get`: the write lock is held.
with input(doc) as (select ?)
select d.id, d.recipient, d.status, d.job_id
from duetime_digest as d where d.id = (select json_extract(doc, '$.doc.id') from input);

-- name: digest_stay_open
-- A reminder leaves it: no row if it was closed.
with input(doc) as (select ?)
select d.id from duetime_digest as d
where d.id = (select json_extract(doc, '$.doc.id') from input) and d.status = 'waiting';

-- name: digest_members
-- Each with whether its job never expires.
with input(doc) as (select ?)
select r.id, exists (select 1 from duetime_job as j where j.id = r.job_id and j.expires_at is null)
from duetime_reminder as r
where r.digest_id = (select json_extract(doc, '$.doc.id') from input) and r.status = 'armed'
order by r.due_at, r.time, r.id limit 2000;

-- name: digest_close
-- Nothing more is added; what does not go with it is free for the next.
with input(doc) as (select ?)
update duetime_reminder set digest_id = null
where digest_id = (select json_extract(doc, '$.doc.id') from input) and status = 'armed'
  and id not in (select e.value from input as i cross join json_each(i.doc, '$.doc.members') as e);

-- name: digest_close_2
with input(doc) as (select ?)
update duetime_digest set status = 'sending'
where id = (select json_extract(doc, '$.doc.id') from input);

-- name: digest_failed
-- Digests that were closed and not sent, and whose job has ended, or is nowhere any more: one, those
-- of jobs, or all; and how it ended. What has just completed may be about to be recorded.
with input(doc) as (select ?)
select d.id, a.outcome, a.error_code, a.error, a.facts
from input as i cross join duetime_digest as d indexed by duetime_digest_sending
left join duetime_attempt as a on a.job_id = d.job_id
    and a.token = (select max(o.token) from duetime_attempt as o where o.job_id = d.job_id)
where d.status = 'sending'
  and d.id = coalesce(json_extract(i.doc, '$.doc.id'), d.id)
  and (json_extract(i.doc, '$.doc.jobs') is null
       or d.job_id in (select e.value from json_each(i.doc, '$.doc.jobs') as e))
  and not exists (select 1 from duetime_due as q where q.job_id = d.job_id)
  and not exists (select 1 from duetime_parked as k where k.job_id = d.job_id)
  and not exists (select 1 from duetime_claim as c where c.job_id = d.job_id)
  and (a.outcome is not 'completed'
       or a.finished_at <= json_extract(i.doc, '$.now') - 10000000)
order by d.id;

-- name: digest_delete
with input(doc) as (select ?)
delete from duetime_digest where id = (select json_extract(doc, '$.doc.id') from input);

-- name: digest_sent
-- All that went with it is sent, and the jobs that waited to do so have nothing left to do. Returns
-- what was recorded. What a receipt reported before that (then it has `sent_at`) stays.
with input(doc) as (select ?)
update duetime_reminder
set status = 'sent', ended_at = (select json_extract(doc, '$.now') from input), held = null,
    reason = iif(status = 'armed', (select json_extract(doc, '$.doc.reason') from input),
                 json_patch((select json_extract(doc, '$.doc.reason') from input),
                            json_object('facts', json_object('was', status, 'why', json(reason)))))
where status <> 'sent'
  and id in (select e.value from input as i cross join json_each(i.doc, '$.doc.members') as e);

-- name: digest_sent_2
with input(doc) as (select ?)
insert into duetime_end_waiting (job_id, outcome, at)
select r.job_id, 'completed', json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc.members') as e
cross join duetime_reminder as r on r.id = e.value;

-- name: digest_sent_3
with input(doc) as (select ?)
insert into duetime_delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   sent_at, updated_at)
select r.id, r.snoozes, json_extract(i.doc, '$.doc.channel'), json_extract(i.doc, '$.doc.key'),
    json_extract(i.doc, '$.doc.status'), json_extract(i.doc, '$.doc.attempts'),
    json_extract(i.doc, '$.doc.external_id'),
    json_extract(i.doc, '$.now'), json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc.members') as e
cross join duetime_reminder as r on r.id = e.value
where true
on conflict (reminder_id, round, channel) do update
    set (key, status, attempts, external_id, next_at, sent_at, updated_at)
    = (excluded.key, excluded.status, excluded.attempts, excluded.external_id, null,
       excluded.sent_at, excluded.updated_at)
    where d.key <> excluded.key or d.sent_at is null
returning reminder_id;
