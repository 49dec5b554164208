-- Statements with which people read and change jobs.

-- name: get_job
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, facts, parked_reason, progress
from duetime.jobs where id = %(job)s;

-- name: may_have_finished
-- Cheaper than the job's state, for one that hardly ever has. No row: there is no such job.
select exists (
    select from duetime.attempt as a
    where a.job_id = j.id
      and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired'))
from duetime.job as j where j.id = %(job)s;

-- name: get_history
select a.token, a.attempt, coalesce(n.name, a.worker_id::text), a.outcome, a.claimed_at,
    a.started_at, a.finished_at, a.error_code, a.error, a.facts, a.traceback, a.result
from duetime.attempt as a left join duetime.worker_name as n on n.id = a.worker_id
where a.job_id = %(job)s order by a.token;

-- name: begin_snapshot
set transaction isolation level repeatable read, read only;

-- name: given_jobs
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, facts, parked_reason, progress
from duetime.jobs as j
where j.id = any (%(ids)s::bigint[])
  and (%(states)s::text[] is null or j.state = any (%(states)s::text[]))
  and (%(queue)s::text is null or j.queue = %(queue)s)
  and (%(task)s::text is null or j.task = %(task)s)
  and (%(but_task)s::text is null or j.task <> %(but_task)s)
  and (%(key)s::text is null or j.key = %(key)s)
order by j.id desc;

-- The ids of jobs that may match, newest first: a page of those below `before`.

-- name: any_ids
-- Served by job_pkey.
select j.id from duetime.job as j
where j.id < %(before)s::bigint
  and (%(queue)s::text is null or j.queue = %(queue)s)
  and (%(task)s::text is null or j.task = %(task)s)
order by j.id desc limit %(page)s;

-- name: waiting_ids
-- Served by due_job and job_pkey.
select d.job_id from duetime.due as d
where d.job_id < %(before)s::bigint
  and (%(queue)s::text is null or d.queue = %(queue)s)
  and (%(task)s::text is null
       or exists (select from duetime.job as j where j.id = d.job_id and j.task = %(task)s offset 0))
order by d.job_id desc limit %(page)s;

-- name: parked_ids
-- Served by parked_pkey.
select p.job_id from duetime.parked as p
where p.job_id < %(before)s::bigint
  and (%(queue)s::text is null or p.queue = %(queue)s)
  and (%(task)s::text is null or p.task = %(task)s)
order by p.job_id desc limit %(page)s;

-- name: running_ids
-- Workers hold few.
select u.id from duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
where u.id < %(before)s::bigint
order by u.id desc limit %(page)s;

-- name: completed_ids
-- Served by attempt_pkey: jobs that wait have no attempt, or an early one.
select a.job_id from duetime.attempt as a
where a.job_id < %(before)s::bigint and a.outcome = 'completed'
order by a.job_id desc, a.token desc limit %(page)s;

-- name: troubled_ids
-- Served by attempt_troubled, state by state.
select t.job_id
from unnest(%(states)s::text[]) as s(state)
cross join lateral (
    select a.job_id from duetime.attempt as a
    where a.outcome = s.state and a.outcome <> 'completed' and a.job_id < %(before)s::bigint
    order by a.job_id desc limit %(page)s
) as t
order by t.job_id desc limit %(page)s;

-- name: keyed_ids
-- Served by job_by_key.
select j.id from duetime.job as j
where j.key = %(key)s::text and j.id < %(before)s::bigint
order by j.id desc limit %(page)s;

-- What people change: each takes one JSON document, since it may run in the caller's transaction.

-- name: brief_jobs
-- What jobs are, before they are changed. Served by job_pkey.
select j.id, j.task, j.key, j.state, (j.args ->> 'reminder')::bigint
from (select id, task, key, state, case when task = 'duetime' || '.remind' then args end as args
      from duetime.jobs
      where id = any (array(select value::bigint from json_array_elements_text(%s::json)))) as j;

-- name: cancel_waiting
-- A job that waits ends as cancelled at once. Zero rows: it does not wait.
select duetime._end_waiting(array[(i.doc ->> 'job')::bigint], 'cancelled', array[i.doc ->> 'text'],
    code => i.doc ->> 'code')
from (select %s::json as doc) as i;

-- name: lock_claims_of
-- The next statement then sees whether an attempt has just finished; one that finishes later waits
-- for us, and sees the cancellation. In one order: two calls that cancel several jobs cannot deadlock.
select token from duetime.claim
where job_ids && array(select value::bigint from json_array_elements_text(%s::json))
order by token for no key update;

-- name: cancel_running
-- Ask the worker that holds the job to stop it. The NOTIFY only makes it read its claims; if it is
-- lost, the heartbeat reads them. The claim was locked before. A job that would run again ends as
-- cancelled, whatever the worker does. `cancel_reasons` has the reason at the job's place in
-- `cancelled`; null if none was given: then the attempt's own error is kept.
with given as materialized (
    select (i.doc ->> 'job')::bigint as job, (i.doc ->> 'reason')::json as reason
    from (select %s::json as doc) as i
), requested as (
    update duetime.claim as c
    set cancelled = array_append(c.cancelled, g.job),
        cancel_reasons = array_append(c.cancel_reasons, g.reason)
    from given as g
    where g.job = any (c.job_ids)
      and not exists (select from duetime.attempt as a where a.job_id = g.job and a.token = c.token)
    returning c.worker_id
)
select pg_notify('duetime.cancel', worker_id::text) from requested;

-- name: waiting_place
-- When a job that waits is due, and its priority; it stays so until we have changed it. Served by
-- due_job and parked_pkey.
with given as materialized (
    select (i.doc ->> 'job')::bigint as job from (select %s::json as doc) as i
), waiting as (
    select d.run_at, d.priority from duetime.due as d
    where d.job_id = (select job from given) for update
), aside as (
    select p.run_at, p.priority from duetime.parked as p
    where p.job_id = (select job from given) for update
)
select * from waiting union all select * from aside;

-- name: reschedule
-- Served by due_job and parked_pkey.
with given as materialized (
    select (i.doc ->> 'job')::bigint as job, (i.doc ->> 'run_at')::timestamptz as run_at
    from (select %s::json as doc) as i
), moved as (
    update duetime.due as d set run_at = g.run_at from given as g where d.job_id = g.job
    returning d.queue, d.run_at
), aside as (
    update duetime.parked as p set run_at = g.run_at from given as g where p.job_id = g.job
    returning p.queue, p.run_at
)
select duetime.wake(m.queue, m.run_at) from (select * from moved union all select * from aside) as m;

-- name: reprioritise
-- Served by due_job, parked_pkey and job_pkey.
with given as materialized (
    select (i.doc ->> 'job')::bigint as job, (i.doc ->> 'priority')::smallint as priority
    from (select %s::json as doc) as i
), moved as (
    update duetime.due as d set priority = g.priority from given as g where d.job_id = g.job
    returning d.queue, d.run_at
), aside as (
    update duetime.parked as p set priority = g.priority from given as g where p.job_id = g.job
    returning p.queue, p.run_at
), kept as (
    update duetime.job as j set priority = g.priority from given as g where j.id = g.job
)
select duetime.wake(m.queue, m.run_at) from (select * from moved union all select * from aside) as m;

-- name: lock_jobs
select id from duetime.job
where id = any (array(select value::bigint from json_array_elements_text(%s::json)))
order by id for update;

-- name: requeue
-- A fresh set of attempts for jobs that finished without success. They were locked before, so that
-- only one of two simultaneous requeues does it. They take their keys again, in the same order as an
-- enqueue; of several jobs with one key the newest takes it. Returns the jobs that wait now: not one
-- whose key another job holds; the row of that key stays locked.
with given as materialized (
    select array(select value::bigint from json_array_elements_text(i.doc -> 'ids')) as ids,
        (i.doc ->> 'run_at')::timestamptz as run_at
    from (select %s::json as doc) as i
), able as materialized (
    select j.id, j.task, j.key, j.hold
    from duetime.job as j join duetime.jobs as v on v.id = j.id
    where j.id = any ((select ids from given)::bigint[])
      and v.state in ('dead', 'cancelled', 'expired', 'superseded')
), taken as (
    insert into duetime.job_key as k (task, key, job_id, hold)
    select distinct on (a.key collate "C", a.task collate "C") a.task, a.key, a.id, a.hold
    from able as a where a.key is not null
    order by a.key collate "C", a.task collate "C", a.id desc
    on conflict (task, key) do update
    set (job_id, hold, held_until) = (excluded.job_id, excluded.hold, null)
    where k.held_until <= duetime.now() or k.job_id = excluded.job_id
    returning k.job_id
), again as materialized (
    select duetime._wait_again(array_agg(a.id), array_agg(coalesce(g.run_at, duetime.now())),
                               array_agg(0)) as job_id
    from able as a, given as g where a.key is null or a.id in (select job_id from taken)
), unexpired as (
    update duetime.job as j set expires_at = null from again as a
    where j.id = a.job_id and j.expires_at is not null
)
select a.job_id from again as a where a.job_id is not null;

-- name: key_holders
select j.id, k.job_id
from duetime.job as j
join duetime.job_key as k on k.task = j.task and k.key = j.key and k.job_id <> j.id
where j.id = any (array(select value::bigint from json_array_elements_text(%s::json)));

-- name: watch
insert into duetime.waiter (job_id, until) values (%(job)s, duetime.now() + %(wait)s);
