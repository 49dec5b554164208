-- Statements that count jobs and group their errors. The jobs are those that `candidate_ids` returned in
-- the same snapshot.

-- name: job_facets
-- How many of these jobs there are of each queue and task. With a `state`, only those in it. With
-- `outcomes`, only those that are finished so, which costs less: a job that was requeued still has the
-- attempt that failed. Served by job_pkey, attempt_pkey, due_job and parked_pkey.
with running as materialized (
    select u.id from duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
    where not exists (select from duetime.attempt as a where a.job_id = u.id and a.token = c.token)
)
select j.queue, j.task, count(*)
from unnest(%(ids)s::bigint[]) as u(id)
cross join lateral (select * from duetime.job where job.id = u.id offset 0) as j
where (%(state)s::text is null
       or exists (select from duetime.jobs as v where v.id = u.id and v.state = %(state)s offset 0))
  and (%(outcomes)s::text[] is null or (
    u.id not in (select r.id from running as r)
    and not exists (select from duetime.due as d where d.job_id = u.id offset 0)
    and not exists (select from duetime.parked as p where p.job_id = u.id offset 0)
    and (select a.outcome from duetime.attempt as a where a.job_id = u.id
         order by a.token desc limit 1) = any (%(outcomes)s)))
group by j.queue, j.task;

-- name: error_groups
-- These jobs, of those that are finished so, by task, error code and message. Digits are left out of the
-- message: they are what differs between two errors of one kind.
with running as materialized (
    select u.id from duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
    where not exists (select from duetime.attempt as a where a.job_id = u.id and a.token = c.token)
)
select j.task, a.error_code, count(*), min(a.finished_at), max(a.finished_at), max(j.id)
from unnest(%(ids)s::bigint[]) as u(id)
cross join lateral (select job.id, job.task from duetime.job where job.id = u.id offset 0) as j
cross join lateral (
    select a.outcome, a.error_code, a.finished_at,
        translate(left(a.error, 200), '0123456789', '') as shape
    from duetime.attempt as a where a.job_id = u.id order by a.token desc limit 1
) as a
where a.outcome = any (%(outcomes)s)
  and u.id not in (select r.id from running as r)
  and not exists (select from duetime.due as d where d.job_id = u.id offset 0)
  and not exists (select from duetime.parked as p where p.job_id = u.id offset 0)
group by j.task, a.error_code, a.shape;

-- name: errors_of
-- The last error of these jobs. Served by attempt_pkey.
select u.id, a.error, a.facts::text
from unnest(%(ids)s::bigint[]) as u(id)
cross join lateral (
    select left(a.error, 1000) as error, a.facts from duetime.attempt as a
    where a.job_id = u.id order by a.token desc limit 1
) as a;
