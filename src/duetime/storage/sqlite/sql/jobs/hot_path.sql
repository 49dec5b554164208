-- Statements of the hot path. Each does a whole batch in one step, given as a JSON array: the
-- driver releases the interpreter lock at every step and row, and beside a busy event loop each of
-- those handovers may cost milliseconds.

-- name: next_token
update duetime_counter set value = value + 1 where name = 'token' returning value;

-- name: lanes
-- The first due time of each lane that is not empty: one probe of due_lane for each.
-- Queues that are paused or limited are left out.
select json_group_array(json_array(queue, priority, run_at)) from (
    select q.value as queue, p.value as priority, (
        select d.run_at from duetime_due as d
        where d.queue = q.value and d.priority = p.value
        order by d.run_at limit 1) as run_at
    from json_each(:queues) as q cross join json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]') as p
    where not exists (
        select 1 from duetime_queue as r
        where r.name = q.value
          and (r.paused_at is not null or coalesce(r.running, r.per_partition, r.rate) is not null))
) where run_at is not null;

-- name: limited_lanes
-- As `lanes`, for queues with limits; the first time after `after`.
select json_group_array(json_array(queue, priority, run_at)) from (
    select q.value as queue, p.value as priority, (
        select d.run_at from duetime_due as d
        where d.queue = q.value and d.priority = p.value and d.run_at > :after
        order by d.run_at limit 1) as run_at
    from json_each(:queues) as q cross join json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]') as p
    where exists (select 1 from duetime_queue as r where r.name = q.value and r.paused_at is null)
) where run_at is not null;

-- name: due_jobs
-- The first jobs of one lane, in time order, by due_lane; never early. Large arguments are read when
-- the job starts: a thousand jobs of a megabyte each would fill a worker's memory.
select json_group_array(json_array(
    id, task, queue, priority, case when length(args) <= :most_args then args end, attempt, max_attempts, run_at, key, partition, timeout,
    expires_at, trace))
from (
    select j.id, j.task, d.queue, d.priority, j.args, d.attempt + 1 as attempt, j.max_attempts,
        d.run_at, j.key, j.partition, j.timeout, j.expires_at, j.trace
    from duetime_due as d indexed by duetime_due_lane
    cross join duetime_job as j on j.id = d.job_id
    where d.queue = :queue and d.priority = :priority and d.run_at <= :now
    order by d.run_at, d.job_id limit :want
);

-- name: due_partitions
-- The first jobs of one lane, without those of the partitions that are full.
select json_group_array(json_array(job_id, partition))
from (
    select d.job_id, d.partition
    from duetime_due as d indexed by duetime_due_lane
    where d.queue = :queue and d.priority = :priority and d.run_at <= :now
      and (d.partition is null or d.partition not in (select value from json_each(:full)))
    order by d.run_at, d.job_id limit :want
);

-- name: chosen_jobs
-- As `due_jobs`, for jobs chosen already; in no order.
select json_group_array(json_array(
    j.id, j.task, j.queue, j.priority, case when length(j.args) <= :most_args then j.args end,
    d.attempt + 1, j.max_attempts, d.run_at, j.key, j.partition, j.timeout, j.expires_at, j.trace))
from duetime_due as d join duetime_job as j on j.id = d.job_id
where d.job_id in (select value from json_each(:jobs));

-- name: args_of
select args from duetime_job where id = :job;

-- name: holds_lease
select exists (select 1 from duetime_worker where id = :worker and lease_until > :now);

-- name: hold
insert into duetime_claim (job_id, token, attempt, worker_id, claimed_at)
select d.job_id, :token, d.attempt + 1, :worker, :now
from json_each(:jobs) as e cross join duetime_due as d on d.job_id = e.value;

-- name: hold_limited
insert into duetime_claim (job_id, token, attempt, worker_id, claimed_at, queue, partition)
select d.job_id, :token, d.attempt + 1, :worker, :now, d.queue, d.partition
from json_each(:jobs) as e cross join duetime_due as d on d.job_id = e.value;

-- name: leave_due
delete from duetime_due where job_id in (select value from json_each(:jobs));

-- name: queue_rules
select running, per_partition, rate, period from duetime_queue
where name = :queue and paused_at is null;

-- name: queue_kind
-- Whether a queue is paused, and whether it has limits; no row: neither.
select paused_at is not null, coalesce(running, per_partition, rate) is not null
from duetime_queue where name = :queue;

-- name: any_quarantined
-- Whether the quarantine lanes have a due job; else no lock is taken.
select exists (
    select 1 from json_each(:queues) as q cross join duetime_due as d indexed by duetime_due_lane
    where d.queue = q.value and d.priority = 10 and d.run_at <= :now);

-- name: count_running
select count(*) from duetime_claim where queue = :queue;

-- name: count_partitions
select partition, count(*) from duetime_claim
where queue = :queue and partition is not null group by partition;

-- name: forget_rate
delete from duetime_rate_use where queue = :queue and at <= :before;

-- name: set_back_rate
-- The clock was set back since: what was claimed before counts for one more period.
update duetime_rate_use set at = :now where queue = :queue and at > :now;

-- name: rate_used
select coalesce(sum(used), 0), min(at) from duetime_rate_use where queue = :queue;

-- name: use_rate
insert into duetime_rate_use (queue, at, used) values (:queue, :now, :used);

-- name: finish
-- Accepts a finished job only if it is still held under its token (the fence). Its row of values is
-- repeated for each job: twice as fast as reading an array of JSON.
insert or ignore into duetime_attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                       started_at, finished_at)
select c.job_id, c.token, c.attempt, c.worker_id, 'completed', c.claimed_at,
    c.claimed_at + e.column3, c.claimed_at + e.column4
from (values (?, ?, ?, ?)) as e cross join duetime_claim as c
    on c.job_id = e.column1 and c.token = e.column2;

-- name: finish_fully
-- As `finish`, with an outcome, an error or a result.
insert or ignore into duetime_attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                       started_at, finished_at, error_code, error, traceback,
                                       result, facts, log)
select c.job_id, c.token, c.attempt, c.worker_id, json_extract(e.value, '$[4]'), c.claimed_at,
    c.claimed_at + json_extract(e.value, '$[2]'), c.claimed_at + json_extract(e.value, '$[3]'),
    case when json_extract(e.value, '$[6]') = 'cancelled'
         then coalesce(json_extract(c.cancel_reason, '$.code'), 'cancelled')
         else json_extract(e.value, '$[6]') end,
    case when json_extract(e.value, '$[4]') = 'cancelled'
         then coalesce(json_extract(c.cancel_reason, '$.facts.text'), json_extract(e.value, '$[7]'))
         else json_extract(e.value, '$[7]') end,
    json_extract(e.value, '$[8]'), json_extract(e.value, '$[9]'), json_extract(e.value, '$[10]'),
    json_extract(e.value, '$[11]')
from json_each(:jobs) as e cross join duetime_claim as c
    on c.job_id = json_extract(e.value, '$[0]') and c.token = json_extract(e.value, '$[1]');

-- name: wait_again
-- Put jobs back into `due`, given as [job, run_at, attempts that count so far, a priority other than
-- the job's own or null]. One that waits already is left as it is. Workers put all jobs
-- back by this: retry, snooze, release, rescue, unpark. `requeue` and `flow_suspend` insert themselves:
-- each is a statement of one document, which may run on the caller's connection.
insert into duetime_due (job_id, queue, priority, run_at, attempt, partition)
select j.id, j.queue, coalesce(json_extract(e.value, '$[3]'), j.priority),
    json_extract(e.value, '$[1]'), json_extract(e.value, '$[2]'), j.partition
from json_each(:jobs) as e cross join duetime_job as j on j.id = json_extract(e.value, '$[0]')
where true
on conflict (job_id) do nothing;

-- name: free_keys
-- The key is released with its job, unless the job completed and has a `hold`.
delete from duetime_job_key
where job_id in (
    select c.job_id
    from json_each(:jobs) as e cross join duetime_claim as c
        on c.job_id = json_extract(e.value, '$[0]') and c.token = json_extract(e.value, '$[1]')
    where json_extract(e.value, '$[5]') is null)
  and (hold is null or job_id in (
    select json_extract(value, '$[0]') from json_each(:jobs)
    where json_extract(value, '$[4]') <> 'completed'));

-- name: keep_keys
update duetime_job_key set held_until = :now + hold where hold is not null and job_id in (
    select c.job_id
    from json_each(:jobs) as e cross join duetime_claim as c
        on c.job_id = json_extract(e.value, '$[0]') and c.token = json_extract(e.value, '$[1]')
    where json_extract(e.value, '$[5]') is null and json_extract(e.value, '$[4]') = 'completed');

-- name: still_held
select json_group_array(json_array(c.job_id, c.token))
from json_each(:jobs) as e cross join duetime_claim as c
    on c.job_id = json_extract(e.value, '$[0]') and c.token = json_extract(e.value, '$[1]');

-- name: close_claims
delete from duetime_claim where (job_id, token) in (
    select json_extract(value, '$[0]'), json_extract(value, '$[1]') from json_each(:jobs));

-- name: close_accepted
-- As `close_claims`, of jobs that this transaction has just found under their tokens.
delete from duetime_claim where job_id in (select value from json_each(:jobs));

-- name: finished_before
-- Which of these attempts are already in the history, from a finish whose answer was lost.
-- The row of a rescue has no start, and does not count.
select json_group_array(json_array(a.job_id, a.token))
from json_each(:jobs) as e cross join duetime_attempt as a
    on a.job_id = json_extract(e.value, '$[0]') and a.token = json_extract(e.value, '$[1]')
where a.started_at is not null;

-- name: cancelled_of
-- The jobs of a worker that it is to stop.
select job_id from duetime_claim indexed by duetime_claim_cancelled
where worker_id = :worker and cancelled is not null order by job_id;

-- name: cancelled_among
-- Which of these held jobs were cancelled.
select json_group_array(c.job_id)
from json_each(:jobs) as e cross join duetime_claim as c
    on c.job_id = json_extract(e.value, '$[0]') and c.token = json_extract(e.value, '$[1]')
where c.cancelled is not null;

-- name: end_cancelled
-- Jobs that are to be given back, and were cancelled, end as cancelled.
insert into duetime_attempt (job_id, token, attempt, worker_id, outcome, claimed_at, finished_at,
                             error_code, error)
select c.job_id, c.token, c.attempt, c.worker_id, 'cancelled', c.claimed_at, :now,
    'cancelled_given_back', json_extract(c.cancel_reason, '$.facts.text')
from json_each(:jobs) as e cross join duetime_claim as c
    on c.job_id = json_extract(e.value, '$[0]') and c.token = json_extract(e.value, '$[1]')
where c.cancelled is not null
returning job_id;

-- name: given_back
-- Held jobs as `wait_again` takes them. A job that was in quarantine stays there.
select json_group_array(json_array(
    c.job_id, json_extract(e.value, '$[2]'), c.attempt - 1,
    case when (select count(*) from duetime_attempt as a
               where a.job_id = c.job_id and +a.outcome = 'lost') >= 2 then 10 end))
from json_each(:jobs) as e cross join duetime_claim as c
    on c.job_id = json_extract(e.value, '$[0]') and c.token = json_extract(e.value, '$[1]');

-- name: park
insert into duetime_parked (job_id, queue, task, priority, run_at, attempt, partition, reason,
                            parked_at)
select j.id, j.queue, j.task, j.priority, json_extract(e.value, '$[2]'), c.attempt - 1,
    j.partition, :reason, :now
from json_each(:jobs) as e cross join duetime_claim as c
    on c.job_id = json_extract(e.value, '$[0]') and c.token = json_extract(e.value, '$[1]')
cross join duetime_job as j on j.id = c.job_id;

-- name: unknown_claims
select c.job_id, c.token, c.claimed_at, j.queue
from duetime_claim as c join duetime_job as j on j.id = c.job_id
where c.worker_id = :worker and c.token not in (select value from json_each(:known));

-- name: complete_claim
-- The fence of a finish inside the caller's transaction. Zero rows: the claim is gone.
delete from duetime_claim where job_id = ? and token = ? returning attempt, worker_id, claimed_at;

-- name: complete_attempt
insert into duetime_attempt (job_id, token, attempt, worker_id, outcome, claimed_at, started_at,
                             finished_at, result, log)
values (?, ?, ?, ?, 'completed', ?, ?, ?, ?, ?);

-- name: complete_free_key
delete from duetime_job_key where job_id = ? and hold is null;

-- name: complete_keep_key
update duetime_job_key set held_until = ? + hold where job_id = ?;
