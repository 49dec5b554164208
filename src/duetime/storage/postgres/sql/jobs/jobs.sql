-- Statements with which people read and change jobs.

-- name: get_job
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, facts, parked_reason, progress, replay_of
from duetime.jobs where id = %(job)s;

-- name: job_result
-- How a job finished; nulls if it has not. No row: there is no such job. It is cheaper than to read the
-- job with its history. A job that was requeued waits, or is held by a claim that is newer than its last
-- attempt.
select j.task, a.outcome, a.error_code, a.error, a.facts, a.result
from duetime.job as j
left join lateral (
    select * from duetime.attempt as a where a.job_id = j.id order by a.token desc limit 1
) as a on a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
    and not exists (select from duetime.due as d where d.job_id = j.id)
    and not exists (select from duetime.parked as p where p.job_id = j.id)
    and not exists (
        select from duetime.claim as c
        where c.token > a.token and j.id = any (c.job_ids)
          and not exists (select from duetime.attempt as e where e.job_id = j.id and e.token = c.token))
where j.id = %(job)s;

-- name: get_history
select a.token, a.attempt, coalesce(n.name, a.worker_id::text), a.outcome, a.claimed_at,
    a.started_at, a.finished_at, a.error_code, a.error, a.facts, a.traceback, a.result,
    a.log::text
from duetime.attempt as a left join duetime.worker_name as n on n.id = a.worker_id
where a.job_id = %(job)s order by a.token;

-- name: begin_snapshot
set transaction isolation level repeatable read, read only;

-- name: given_jobs
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, facts, parked_reason, progress, replay_of
from duetime.jobs as j
where j.id = any (%(ids)s::bigint[])
  and (%(states)s::text[] is null or j.state = any (%(states)s::text[]))
  and (%(ended_by)s::timestamptz is null or j.finished_at is null or j.finished_at <= %(ended_by)s)
order by j.id desc;

-- name: candidate_ids
-- The newest jobs below `before` that may match, at most a `page` of them. They come from a `source`,
-- the table or index that holds jobs in the wanted state, of which a `window` of rows is examined.
-- Returns their ids as JSON, where to go on (null if there is nothing below), and how many rows were
-- examined.
-- Served by job_pkey, job_by_key, due_job, due_retrying_job, parked_pkey, attempt_pkey, attempt_troubled.
with seen as materialized (
    (select j.id, null::timestamptz as run_at, null::text as code, true as fits
     from duetime.job as j
     where %(source)s::text = 'any' and j.id < %(before)s::bigint and j.id >= %(lowest)s::bigint
     order by j.id desc limit %(window)s::bigint)
    union all
    (select j.id, null, null, true from duetime.job as j
     where %(source)s = 'keyed' and j.key = %(key)s::text
       and j.id < %(before)s and j.id >= %(lowest)s
     order by j.id desc limit %(window)s)
    union all
    (select u.id, null, null, true from unnest(%(ids)s::bigint[]) as u(id)
     where %(source)s = 'given' and u.id < %(before)s and u.id >= %(lowest)s
     order by u.id desc limit %(window)s)
    union all
    (select d.job_id, d.run_at, null, true from unnest(%(ids)s::bigint[]) as u(id)
     cross join lateral (select * from duetime.due where due.job_id = u.id offset 0) as d
     where %(source)s = 'due' and u.id < %(before)s and u.id >= %(lowest)s
     order by u.id desc limit %(window)s)
    union all
    (select d.job_id, d.run_at, null, d.attempt = 0 from duetime.due as d
     where %(source)s = 'pending' and d.job_id < %(before)s and d.job_id >= %(lowest)s
     order by d.job_id desc limit %(window)s)
    union all
    (select d.job_id, d.run_at, null, true from duetime.due as d
     where %(source)s = 'retrying' and d.attempt > 0
       and d.job_id < %(before)s and d.job_id >= %(lowest)s
     order by d.job_id desc limit %(window)s)
    union all
    (select p.job_id, p.run_at, null, true from duetime.parked as p
     where %(source)s = 'parked' and p.job_id < %(before)s and p.job_id >= %(lowest)s
     order by p.job_id desc limit %(window)s)
    union all
    -- Workers hold few.
    (select u.id, null, null, true
     from duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
     where %(source)s = 'running' and u.id < %(before)s and u.id >= %(lowest)s
     order by u.id desc limit %(window)s)
    union all
    (select a.job_id, null, a.error_code, a.outcome = 'completed' from duetime.attempt as a
     where %(source)s = 'completed' and a.job_id < %(before)s and a.job_id >= %(lowest)s
     order by a.job_id desc, a.token desc limit %(window)s)
    union all
    (select t.job_id, null, t.error_code, true
     from unnest(%(states)s::text[]) as s(state)
     cross join lateral (
         select a.job_id, a.error_code from duetime.attempt as a
         where a.outcome = s.state and a.outcome <> 'completed'
           and a.job_id < %(before)s and a.job_id >= %(lowest)s
         order by a.job_id desc limit %(window)s
     ) as t
     where %(source)s = 'troubled'
     order by t.job_id desc limit %(window)s)
), matching as (
    select s.id from seen as s
    where s.fits
      and (%(due_since)s::timestamptz is null or s.run_at >= %(due_since)s)
      and (%(due_before)s::timestamptz is null or s.run_at < %(due_before)s)
      and (%(error_code)s::text is null or s.code is null or s.code = %(error_code)s)
      and (%(error_code)s is null or %(error_code)s = (
          select a.error_code from duetime.attempt as a
          where a.job_id = s.id order by a.token desc limit 1))
      and (%(plain)s::boolean or exists (
          select from duetime.job as j
          where j.id = s.id
            and (%(queue)s::text is null or j.queue = %(queue)s)
            and (%(task)s::text is null or j.task = %(task)s)
            and (%(but_tasks)s::text is null or not starts_with(j.task, %(but_tasks)s))
            and (%(key)s is null or j.key = %(key)s)
            and (%(created_since)s::timestamptz is null or j.created_at >= %(created_since)s)
            and (%(created_before)s::timestamptz is null or j.created_at < %(created_before)s)
            and (%(paths)s::text[] is null or case
                -- A path cannot be followed through arguments with a NUL.
                when strpos(j.args::text, '\u0000') > 0 then false
                else not exists (
                    select from unnest(%(paths)s::text[], %(values)s::jsonb[]) as w(path, value)
                    where (j.args #> w.path::text[])::jsonb is distinct from w.value) end)
          offset 0))
    order by s.id desc limit %(page)s::bigint
)
select (select coalesce(json_agg(m.id), '[]')::text from matching as m),
    case when count(*) >= %(window)s then min(s.id) end, count(*)
from seen as s;

-- name: due_between_ids
-- Jobs that are due in a span of time, `most` of them. Served by due_pkey, lane by lane.
with recursive queues as (
    select (select d.queue from duetime.due as d order by d.queue limit 1) as name
    union all
    select (select d.queue from duetime.due as d where d.queue > q.name order by d.queue limit 1)
    from queues as q where q.name is not null
)
select d.job_id
from queues as q cross join generate_series(0, 10) as p(priority)
cross join lateral (
    select d.job_id from duetime.due as d
    where d.queue = q.name and d.priority = p.priority
      and d.run_at >= coalesce(%(due_since)s::timestamptz, '1900-01-01Z')
      and d.run_at < coalesce(%(due_before)s::timestamptz, '9999-01-01Z')
    limit %(most)s
) as d
where q.name is not null and (%(queue)s::text is null or q.name = %(queue)s)
limit %(most)s;

-- name: job_range
select min(j.id), max(j.id) from duetime.job as j;

-- name: job_near
-- The first job from this id on, and whether it was created at that time or later.
select j.id, j.created_at >= %(moment)s from duetime.job as j
where j.id >= %(id)s order by j.id limit 1;

-- What people change: each takes one JSON document, since it may run in the caller's transaction.

-- name: brief_jobs
-- What jobs are, before they are changed. Served by job_pkey.
select j.id, j.task, j.key, j.state, (j.args ->> 'reminder')::bigint,
    coalesce((select r.flow from duetime.job as r where r.id = j.id), false)
from (select id, task, key, state, case when task = 'duetime' || '.remind' then args end as args
      from duetime.jobs
      where id = any (array(select value::bigint from json_array_elements_text(%s::json)))) as j;

-- name: cancel_waiting
-- A job that waits ends as cancelled at once. Zero rows: it does not wait.
select duetime._end_waiting(array[(i.doc ->> 'job')::bigint], 'cancelled', array[i.doc ->> 'text'],
    code => i.doc ->> 'code')
from (select %s::json as doc) as i;

-- name: cancel_waiting_many
-- The same for several. Returns those that waited.
select duetime._end_waiting(
    array(select value::bigint from json_array_elements_text(i.doc -> 'ids')), 'cancelled',
    array(select i.doc ->> 'text' from json_array_elements_text(i.doc -> 'ids')),
    code => i.doc ->> 'code')
from (select %s::json as doc) as i;

-- name: hold_claim
-- The claim of a job under this token, which stays until we have committed: a rescuer waits for us.
select c.token
from (select %s::json as doc) as i
cross join lateral (
    select c.token from duetime.claim as c
    where c.token = (i.doc ->> 'token')::bigint and (i.doc ->> 'job')::bigint = any (c.job_ids)
    for key share
) as c;

-- name: bulk_progress
insert into duetime.progress (job_id, token, progress, at)
select (i.doc ->> 'job')::bigint, (i.doc ->> 'token')::bigint, i.doc -> 'progress', duetime.now()
from (select %s::json as doc) as i
on conflict (job_id) do update
set (token, progress, at) = (excluded.token, excluded.progress, excluded.at);

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
-- When a job that waits is due, its priority, and when it expires; it stays so until we have changed
-- it. Served by due_job, parked_pkey and job_pkey.
with given as materialized (
    select (i.doc ->> 'job')::bigint as job from (select %s::json as doc) as i
), waiting as (
    select d.run_at, d.priority from duetime.due as d
    where d.job_id = (select job from given) for update
), aside as (
    select p.run_at, p.priority from duetime.parked as p
    where p.job_id = (select job from given) for update
)
select w.run_at, w.priority, j.expires_at
from (select * from waiting union all select * from aside) as w
cross join duetime.job as j where j.id = (select job from given);

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

-- name: mark_replay
update duetime.job as j set replay_of = (i.doc ->> 'of')::bigint
from (select %s::json as doc) as i where j.id = (i.doc ->> 'job')::bigint;

-- name: lock_jobs
select id from duetime.job
where id = any (array(select value::bigint from json_array_elements_text(%s::json)))
order by id for update;

-- name: lock_waiting
-- Those of the jobs that wait, in one order. Whoever changes a job that waits holds its row here before
-- its row in `job`: so do we. Served by due_job and parked_pkey.
with given as materialized (
    select array(select value::bigint from json_array_elements_text(%s::json)) as ids
), waiting as materialized (
    select from duetime.due as d where d.job_id = any ((select ids from given)::bigint[])
    order by d.job_id for update
), aside as materialized (
    select from duetime.parked as p
    where p.job_id = any ((select ids from given)::bigint[]) and (select count(*) from waiting) >= 0
    order by p.job_id for update
)
select count(*) from aside;

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
