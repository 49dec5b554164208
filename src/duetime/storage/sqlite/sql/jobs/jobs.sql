-- Statements with which people read and change jobs.

-- name: get_job
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, facts, parked_reason, progress
from duetime_jobs where id = :job;

-- name: get_history
select a.token, a.attempt, coalesce(n.name, cast(a.worker_id as text)), a.outcome, a.claimed_at,
    a.started_at, a.finished_at, a.error_code, a.error, a.facts, a.traceback, a.result
from duetime_attempt as a left join duetime_worker_name as n on n.id = a.worker_id
where a.job_id = :job order by a.token;

-- name: given_jobs
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, facts, parked_reason, progress
from duetime_jobs as j
where j.id in (select value from json_each(:ids))
  and (:states is null or j.state in (select value from json_each(:states)))
  and (:queue is null or j.queue = :queue)
  and (:task is null or j.task = :task)
  and (:but_task is null or j.task <> :but_task)
  and (:key is null or j.key = :key)
order by j.id desc;

-- The ids of jobs that may match, newest first: a page of those below `before`.

-- name: any_ids
select j.id from duetime_job as j
where j.id < :before and (:queue is null or j.queue = :queue) and (:task is null or j.task = :task)
order by j.id desc limit :page;

-- name: waiting_ids
select d.job_id from duetime_due as d
where d.job_id < :before and (:queue is null or d.queue = :queue)
  and (:task is null
       or exists (select 1 from duetime_job as j where j.id = d.job_id and j.task = :task))
order by d.job_id desc limit :page;

-- name: parked_ids
select p.job_id from duetime_parked as p
where p.job_id < :before and (:queue is null or p.queue = :queue)
  and (:task is null or p.task = :task)
order by p.job_id desc limit :page;

-- name: running_ids
select c.job_id from duetime_claim as c where c.job_id < :before
order by c.job_id desc limit :page;

-- name: completed_ids
-- By the primary key: jobs that wait have no attempt, or an early one.
select a.job_id from duetime_attempt as a
where a.job_id < :before and +a.outcome = 'completed'
order by a.job_id desc, a.token desc limit :page;

-- name: troubled_ids
-- Served by attempt_ended.
select a.job_id from duetime_attempt as a indexed by duetime_attempt_ended
where a.outcome in (select value from json_each(:states) where value <> 'completed')
  and a.job_id < :before
order by a.job_id desc limit :page;

-- name: keyed_ids
-- Served by job_by_key.
select j.id from duetime_job as j where j.key = :key and j.id < :before
order by j.id desc limit :page;

-- name: finished_jobs
select id from duetime_jobs where id in (select value from json_each(:jobs))
    and state in ('completed', 'dead', 'cancelled', 'superseded', 'expired');

-- name: end_waiting
insert into duetime_end_waiting (job_id, outcome, error_code, error, facts, at)
values (:job, :outcome, :code, :error, :facts, :now);

-- What people change: each takes one JSON document, since it may run in the caller's transaction.

-- name: brief_jobs
-- What jobs are, before they are changed.
with input(doc) as (select ?)
select j.id, j.task, j.key, j.state,
    case when j.task = 'duetime.remind' then json_extract(j.args, '$.reminder') end
from duetime_jobs as j
where j.id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: cancel_waiting
-- A job that waits ends as cancelled at once. Zero rows: it does not wait.
with input(doc) as (select ?)
insert into duetime_end_waiting (job_id, outcome, error_code, error, at)
select w.job_id, 'cancelled', json_extract(i.doc, '$.doc.code'), json_extract(i.doc, '$.doc.text'),
    json_extract(i.doc, '$.now')
from input as i cross join (
    select job_id from duetime_due union all select job_id from duetime_parked) as w
    on w.job_id = json_extract(i.doc, '$.doc.job');

-- name: cancel_waiting_2
with input(doc) as (select ?)
select j.id from input as i cross join duetime_jobs as j on j.id = json_extract(i.doc, '$.doc.job')
where j.state = 'cancelled';

-- name: lock_claims_of
-- Nothing to lock: we are the only one who writes.
with input(doc) as (select ?)
select c.token from duetime_claim as c
where c.job_id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: cancel_running
-- Ask the worker that holds the job to stop it; its sleeper or its heartbeat finds it.
with input(doc) as (select ?)
update duetime_claim
set cancelled = (select json_extract(doc, '$.now') from input),
    cancel_reason = coalesce(cancel_reason, (select json_extract(doc, '$.doc.reason') from input))
where job_id = (select json_extract(doc, '$.doc.job') from input) returning worker_id;

-- name: waiting_place
-- When a job that waits is due, and its priority.
with input(doc) as (select ?)
select d.run_at, d.priority from input as i
cross join duetime_due as d on d.job_id = json_extract(i.doc, '$.doc.job')
union all
select p.run_at, p.priority from input as i
cross join duetime_parked as p on p.job_id = json_extract(i.doc, '$.doc.job');

-- name: reschedule
with input(doc) as (select ?)
update duetime_due set run_at = (select json_extract(doc, '$.doc.run_at') from input)
where job_id = (select json_extract(doc, '$.doc.job') from input);

-- name: reschedule_2
with input(doc) as (select ?)
update duetime_parked set run_at = (select json_extract(doc, '$.doc.run_at') from input)
where job_id = (select json_extract(doc, '$.doc.job') from input);

-- name: reprioritise
with input(doc) as (select ?)
update duetime_due set priority = (select json_extract(doc, '$.doc.priority') from input)
where job_id = (select json_extract(doc, '$.doc.job') from input);

-- name: reprioritise_2
with input(doc) as (select ?)
update duetime_parked set priority = (select json_extract(doc, '$.doc.priority') from input)
where job_id = (select json_extract(doc, '$.doc.job') from input);

-- name: reprioritise_3
with input(doc) as (select ?)
update duetime_job set priority = (select json_extract(doc, '$.doc.priority') from input)
where id = (select json_extract(doc, '$.doc.job') from input);

-- name: lock_jobs
-- Nothing to lock: we are the only one who writes.
with input(doc) as (select ?)
select 1 from input;

-- name: requeue
-- A fresh set of attempts. The jobs' keys, where they are free; of several with one key the newest
-- takes it.
with input(doc) as (select ?)
insert into duetime_job_key (task, key, job_id, hold)
select task, key, max(id), hold from duetime_job
where id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
  and key is not null
group by task, key
on conflict (task, key) do update
    set job_id = excluded.job_id, hold = excluded.hold, held_until = null
    where held_until <= (select json_extract(doc, '$.now') from input)
       or job_id = excluded.job_id;

-- name: requeue_2
-- Those that have no key, or have it now. `held_until` is set if its last holder has finished.
with input(doc) as (select ?)
insert into duetime_due (job_id, queue, priority, run_at, partition)
select j.id, j.queue, j.priority,
    coalesce(json_extract(i.doc, '$.doc.run_at'), json_extract(i.doc, '$.now')), j.partition
from input as i cross join json_each(i.doc, '$.doc.ids') as e
cross join duetime_job as j on j.id = e.value
where j.key is null or exists (
    select 1 from duetime_job_key as k
    where k.task = j.task and k.key = j.key and k.job_id = j.id and k.held_until is null)
on conflict (job_id) do nothing;

-- name: requeue_3
-- The jobs were finished, so that those which wait are those of the last statement.
with input(doc) as (select ?)
update duetime_job set expires_at = null
where id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
  and expires_at is not null and exists (select 1 from duetime_due as d where d.job_id = id);

-- name: requeue_4
with input(doc) as (select ?)
select d.job_id from input as i cross join json_each(i.doc, '$.doc.ids') as e
cross join duetime_due as d on d.job_id = e.value;

-- name: key_holders
with input(doc) as (select ?)
select j.id, k.job_id
from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_job as j on j.id = e.value
join duetime_job_key as k on k.task = j.task and k.key = j.key and k.job_id <> j.id;
