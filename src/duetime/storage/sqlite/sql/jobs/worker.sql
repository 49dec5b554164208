-- Statements of a worker's registration and heartbeat, and of the rescuer and the pruner.

-- name: next_worker
update duetime_counter set value = value + 1 where name = 'worker' returning value;

-- name: register_worker
insert into duetime_worker (id, name, queues, tasks, concurrency, started_at, seen_at, lease_until)
values (:worker, :name, :queues, :tasks, :concurrency, :now, :now, :lease_until);

-- name: name_worker
insert into duetime_worker_name (id, name, at) values (:worker, :name, :now);

-- name: register_task
insert into duetime_task (name, queue, priority, max_attempts, timeout, expires, flow, updated_at)
values (:name, :queue, :priority, :max_attempts, :timeout, :expires, :flow, :now)
on conflict (name) do update set (queue, priority, max_attempts, timeout, expires, flow, updated_at)
    = (excluded.queue, excluded.priority, excluded.max_attempts, excluded.timeout,
       excluded.expires, excluded.flow, excluded.updated_at);

-- name: remove_worker
-- Only a worker that holds nothing may leave; else its lease runs out and its jobs are rescued.
delete from duetime_worker where id = :worker
    and not exists (select 1 from duetime_claim where worker_id = :worker);

-- name: beat
-- Zero rows: this worker's lease had run out.
update duetime_worker set seen_at = :now, lease_until = :lease_until, loop_lag = :lag
where id = :worker and lease_until > :now
returning (select count(*) from duetime_worker as w where w.id < :worker);

-- name: due_ids
-- The next jobs of these queues, by their ids alone: whatever their rows hold, this can be read.
select d.job_id from duetime_due as d indexed by duetime_due_lane
where d.queue in (select value from json_each(:queues)) and d.priority between 0 and 10
order by d.run_at limit :most;

-- name: park_unreadable
insert into duetime_parked (job_id, queue, task, priority, run_at, attempt, partition, reason,
                            parked_at, unreadable)
select d.job_id, d.queue, j.task, d.priority, :now, max(min(d.attempt, 20000), 0), d.partition,
    :reason, :now, 1
from duetime_due as d join duetime_job as j on j.id = d.job_id where d.job_id = :job;

-- name: parked_for
-- Parked jobs of these tasks and queues, as `wait_again` takes them.
select json_group_array(json_array(job_id, run_at, attempt, priority)) from (
    select job_id, run_at, attempt, priority from duetime_parked
    where task in (select value from json_each(:tasks))
      and queue in (select value from json_each(:queues)) and not unreadable
      and job_id not in (select value from json_each(:sparing))
    order by job_id limit 1000);

-- name: leave_parked
delete from duetime_parked
where job_id in (select json_extract(value, '$[0]') from json_each(:jobs));

-- name: set_progress
insert into duetime_progress (job_id, token, progress, at)
select :job, :token, :progress, :now
where exists (select 1 from duetime_claim where job_id = :job and token = :token)
on conflict (job_id) do update set (token, progress, at)
    = (excluded.token, excluded.progress, excluded.at)
returning 1;

-- name: dead_claims
-- Jobs held by workers whose lease ran out, or that are gone, and what becomes of each. The attempt
-- counts, unless the claim was made after the lease, or by a worker that is gone: then it cannot
-- have begun.
select c.job_id, c.token, c.attempt, c.worker_id, c.claimed_at, j.task, j.queue,
    case when c.cancelled is not null then 'cancelled'
         when w.id is null or w.lease_until <= c.claimed_at then 'given back'
         when c.attempt >= coalesce(t.max_attempts, j.max_attempts) then 'dead' else 'lost' end,
    (select count(*) from duetime_attempt as a where a.job_id = c.job_id and +a.outcome = 'lost'),
    coalesce(n.name, cast(c.worker_id as text)), c.queue is not null,
    json_extract(c.cancel_reason, '$.facts.text')
from duetime_claim as c
join duetime_job as j on j.id = c.job_id
-- Reminders may be armed before any worker has registered how many attempts they have.
left join duetime_task as t on t.name = j.task and j.task in ('duetime.remind', 'duetime.digest')
left join duetime_worker as w on w.id = c.worker_id
left join duetime_worker_name as n on n.id = c.worker_id
where (w.id is null or w.lease_until <= :now) and c.worker_id <> :sparing
order by c.token, c.job_id limit 10000;

-- name: any_dead
-- Whether the rescuer has anything to do; else it takes no lock.
select exists (select 1 from duetime_worker where lease_until <= :now)
    or exists (select 1 from duetime_claim where worker_id not in (select id from duetime_worker));

-- name: record_lost
insert into duetime_attempt (job_id, token, attempt, worker_id, outcome, claimed_at, finished_at,
                             error_code, error)
values (?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: drop_claim
delete from duetime_claim where job_id = ?;

-- name: free_key
delete from duetime_job_key where job_id = ?;

-- name: bury_workers
-- Dead workers that no longer hold anything.
delete from duetime_worker where lease_until <= :now
    and id not in (select worker_id from duetime_claim);

-- name: old_jobs
-- Jobs whose last attempt had this outcome before this time, and that do not wait or run again.
-- Served by attempt_ended.
select json_group_array(job_id) from (
    select a.job_id from duetime_attempt as a indexed by duetime_attempt_ended
    where a.outcome = :outcome and a.finished_at < :before
      and not exists (select 1 from duetime_attempt as b
                      where b.job_id = a.job_id and b.token > a.token)
      and not exists (select 1 from duetime_due as d where d.job_id = a.job_id)
      and not exists (select 1 from duetime_parked as p where p.job_id = a.job_id)
      and not exists (select 1 from duetime_claim as c where c.job_id = a.job_id)
    limit :batch
);

-- name: long_parked
-- Jobs that no worker could run for so long end as dead: they are visible as such, can be requeued,
-- and are pruned. Few jobs are parked.
select job_id, reason from duetime_parked where parked_at < :before
order by job_id limit :batch;

-- name: prune_attempts
delete from duetime_attempt where job_id in (select value from json_each(:jobs));

-- name: prune_progress
delete from duetime_progress where job_id in (select value from json_each(:jobs));

-- name: prune_steps
delete from duetime_flow_step where run_id in (select value from json_each(:jobs));

-- name: prune_signals
delete from duetime_flow_signal where run_id in (select value from json_each(:jobs));

-- name: prune_shapes
delete from duetime_flow_run where run_id in (select value from json_each(:jobs));

-- name: prune_jobs
delete from duetime_job where id in (select value from json_each(:jobs));

-- name: prune_keys
delete from duetime_job_key where held_until <= :now;

-- name: prune_names
delete from duetime_worker_name where at < :before
    and id not in (select id from duetime_worker);
