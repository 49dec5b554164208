-- Statements with which people look at jobs and change them.

-- name: get_job
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, parked_reason, progress
from duetime_jobs where id = :job;

-- name: get_history
select a.token, a.attempt, coalesce(n.name, cast(a.worker_id as text)), a.ended_as, a.claimed_at,
    a.started_at, a.finished_at, a.error_code, a.error, a.traceback, a.result
from duetime_attempt as a left join duetime_worker_name as n on n.id = a.worker_id
where a.job_id = :job order by a.token;

-- name: list_jobs
-- Newest first. For states that few jobs are in, the candidates come from the table or the
-- index where such jobs stand; else the primary key is walked backwards.
with candidate as materialized (
    select d.job_id as id from duetime_due as d where :waiting
    union select p.job_id from duetime_parked as p where :waiting
    union select c.job_id from duetime_claim as c where :running
    union select a.job_id from duetime_attempt as a
        where a.ended_as in (select value from json_each(:troubled))
)
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, parked_reason, progress
from duetime_jobs as j
where (:walk or j.id in (select id from candidate))
  and (:states is null or j.state in (select value from json_each(:states)))
  and (:queue is null or j.queue = :queue)
  and (:task is null or j.task = :task)
  and (:but_task is null or j.task <> :but_task)
  and (:key is null or j.key = :key)
  and (:before is null or j.id < :before)
order by j.id desc limit :limit;

-- name: list_given_jobs
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, parked_reason, progress
from duetime_jobs as j
where j.id in (select value from json_each(:ids))
  and (:states is null or j.state in (select value from json_each(:states)))
  and (:queue is null or j.queue = :queue)
  and (:task is null or j.task = :task)
  and (:but_task is null or j.task <> :but_task)
  and (:key is null or j.key = :key)
  and (:before is null or j.id < :before)
order by j.id desc limit :limit;

-- name: job_state
select state from duetime_jobs where id = :job;

-- name: ended_jobs
select id from duetime_jobs where id in (select value from json_each(:jobs))
    and state in ('completed', 'dead', 'cancelled', 'superseded', 'expired');

-- name: leave_due_one
delete from duetime_due where job_id = :job returning attempt;

-- name: leave_parked
delete from duetime_parked where job_id = :job returning attempt;

-- name: end_waiting
insert into duetime_attempt (job_id, token, attempt, ended_as, finished_at, error)
values (:job, :token, :attempt, :ended_as, :now, :reason);

-- name: cancel_running
-- Ask the worker that holds the job to stop it; its sleeper or its heartbeat finds it.
update duetime_claim set cancelled = :now where job_id = :job returning worker_id;

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
-- Of these jobs those that ended without success.
select id, key is not null from duetime_jobs
where id in (select value from json_each(:jobs))
  and state in ('dead', 'cancelled', 'expired', 'superseded');

-- name: take_keys
-- The jobs' keys, where they are free; of several with one key the newest takes it.
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

-- name: requeue
-- A fresh set of attempts.
insert or ignore into duetime_due (job_id, queue, priority, run_at, partition)
select id, queue, priority, :run_at, partition from duetime_job
where id in (select value from json_each(:jobs))
returning job_id, queue;

-- name: unexpire
update duetime_job set expires_at = null
where expires_at is not null and id in (select value from json_each(:jobs));
