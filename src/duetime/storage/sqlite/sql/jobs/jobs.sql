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

-- name: job_state
select state from duetime_jobs where id = :job;

-- name: finished_jobs
select id from duetime_jobs where id in (select value from json_each(:jobs))
    and state in ('completed', 'dead', 'cancelled', 'superseded', 'expired');

-- name: waits
select exists (select 1 from duetime_due where job_id = :job)
    or exists (select 1 from duetime_parked where job_id = :job);

-- name: end_waiting
insert into duetime_end_waiting (job_id, outcome, error_code, error, facts, at)
values (:job, :outcome, :code, :error, :facts, :now);

-- name: cancel_running
-- Ask the worker that holds the job to stop it; its sleeper or its heartbeat finds it.
update duetime_claim
set cancelled = :now, cancel_reason = coalesce(cancel_reason, :reason)
where job_id = :job returning worker_id;

-- name: waiting_place
-- When a job that waits is due, and its priority.
select run_at, priority from duetime_due where job_id = :job
union all select run_at, priority from duetime_parked where job_id = :job;

-- name: reschedule
update duetime_due set run_at = :run_at where job_id = :job returning queue;

-- name: reschedule_parked
update duetime_parked set run_at = :run_at where job_id = :job returning queue;

-- name: reprioritise_parked
update duetime_parked set priority = :priority where job_id = :job returning queue;

-- name: reprioritise
update duetime_due set priority = :priority where job_id = :job and priority < 10 returning queue;

-- name: keep_priority
update duetime_job set priority = :priority where id = :job;

-- name: requeuable
-- Of these jobs, those that finished without success.
select id, queue, key is not null from duetime_jobs
where id in (select value from json_each(:jobs))
  and state in ('dead', 'cancelled', 'expired', 'superseded');

-- name: take_keys
-- The jobs' keys, where they are free; of several jobs with one key the newest takes it.
insert into duetime_job_key (task, key, job_id, hold)
select task, key, max(id), hold from duetime_job
where id in (select value from json_each(:jobs)) and key is not null
group by task, key
on conflict (task, key) do update
    set job_id = excluded.job_id, hold = excluded.hold, held_until = null
    where held_until <= :now or job_id = excluded.job_id
returning job_id;

-- name: key_holders
select j.id, k.job_id
from duetime_job as j join duetime_job_key as k on k.task = j.task and k.key = j.key
where j.id in (select value from json_each(:jobs));

-- name: unexpire
update duetime_job set expires_at = null
where expires_at is not null and id in (select value from json_each(:jobs));
