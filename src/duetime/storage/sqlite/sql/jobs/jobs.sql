-- Statements with which people read and change jobs.

-- name: get_job
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, facts, parked_reason, progress, replay_of
from duetime_jobs where id = :job;

-- name: get_history
select a.token, a.attempt, coalesce(n.name, cast(a.worker_id as text)), a.outcome, a.claimed_at,
    a.started_at, a.finished_at, a.error_code, a.error, a.facts, a.traceback, a.result,
    a.log
from duetime_attempt as a left join duetime_worker_name as n on n.id = a.worker_id
where a.job_id = :job order by a.token;

-- name: given_jobs
select id, task, queue, priority, state, args, attempts, max_attempts, run_at, created_at,
    finished_at, key, partition, timeout, expires_at, worker, claimed_at, lease_until,
    error_code, error, facts, parked_reason, progress, replay_of
from duetime_jobs as j
where j.id in (select value from json_each(:ids))
  and (:states is null or j.state in (select value from json_each(:states)))
  and (:ended_by is null or j.finished_at is null or j.finished_at <= :ended_by)
order by j.id desc;

-- name: candidate_ids
-- The newest jobs below `before` that may match, at most a `page` of them. They come from a `source`,
-- the table or index that holds jobs in the wanted state, of which a `window` of rows is examined.
-- Returns their ids as JSON, where to go on (null if there is nothing below), and how many rows were
-- examined.
with seen as materialized (
    select * from (
        select j.id, null as run_at, null as code, true as fits from duetime_job as j
        where :source = 'any' and j.id < :before and j.id >= :lowest
        order by j.id desc limit :window)
    union all
    select * from (
        select j.id, null, null, true from duetime_job as j indexed by duetime_job_by_key
        where :source = 'keyed' and j.key = :key and j.id < :before and j.id >= :lowest
        order by j.id desc limit :window)
    union all
    select * from (
        select g.value as id, null, null, true from json_each(:ids) as g
        where :source = 'given' and g.value < :before and g.value >= :lowest
        order by g.value desc limit :window)
    union all
    select * from (
        select d.job_id, d.run_at, null, true
        from json_each(:ids) as g cross join duetime_due as d on d.job_id = g.value
        where :source = 'due' and g.value < :before and g.value >= :lowest
        order by d.job_id desc limit :window)
    union all
    select * from (
        select d.job_id, d.run_at, null, d.attempt = 0 from duetime_due as d
        where :source = 'pending' and d.job_id < :before and d.job_id >= :lowest
        order by d.job_id desc limit :window)
    union all
    select * from (
        select d.job_id, d.run_at, null, true
        from duetime_due as d indexed by duetime_due_retrying_job
        where :source = 'retrying' and d.attempt > 0 and d.job_id < :before and d.job_id >= :lowest
        order by d.job_id desc limit :window)
    union all
    select * from (
        select p.job_id, p.run_at, null, true from duetime_parked as p
        where :source = 'parked' and p.job_id < :before and p.job_id >= :lowest
        order by p.job_id desc limit :window)
    union all
    select * from (
        select c.job_id, null, null, true from duetime_claim as c
        where :source = 'running' and c.job_id < :before and c.job_id >= :lowest
        order by c.job_id desc limit :window)
    union all
    select * from (
        -- By the primary key.
        select a.job_id, null, a.error_code, +a.outcome = 'completed' from duetime_attempt as a
        where :source = 'completed' and a.job_id < :before and a.job_id >= :lowest
        order by a.job_id desc, a.token desc limit :window)
    union all
    select * from (
        select a.job_id, null, a.error_code, true
        from duetime_attempt as a indexed by duetime_attempt_troubled
        where :source = 'troubled' and a.outcome <> 'completed'
          and a.outcome in (select value from json_each(:states))
          and a.job_id < :before and a.job_id >= :lowest
        order by a.job_id desc limit :window)
), wanted as materialized (
    select w.key as number, json_extract(w.value, '$.value') as value,
        json_extract(w.value, '$.types') as types, p.value as path
    from json_each(:args) as w cross join json_each(w.value, '$.paths') as p
), matching as (
    select s.id from seen as s
    where s.fits
      and (:due_since is null or s.run_at >= :due_since)
      and (:due_before is null or s.run_at < :due_before)
      and (:error_code is null or s.code is null or s.code = :error_code)
      and (:error_code is null or :error_code = (
          select a.error_code from duetime_attempt as a
          where a.job_id = s.id order by a.token desc limit 1))
      and (:plain or exists (
          select 1 from duetime_job as j
          where j.id = s.id
            and (:queue is null or j.queue = :queue)
            and (:task is null or j.task = :task)
            and (:but_tasks is null or substr(j.task, 1, length(:but_tasks)) <> :but_tasks)
            and (:key is null or j.key = :key)
            and (:created_since is null or j.created_at >= :created_since)
            and (:created_before is null or j.created_at < :created_before)
            and (:args is null or case when json_valid(j.args) then :conditions = (
                select count(distinct w.number) from wanted as w
                where instr(w.types, json_type(j.args, w.path)) > 0
                  and json_extract(j.args, w.path) is w.value) end)))
    order by s.id desc limit :page
)
select (select json_group_array(m.id) from matching as m),
    case when count(*) >= :window then min(s.id) end, count(*)
from seen as s;

-- name: due_between_ids
-- Jobs that are due in a span of time, `most` of them. Served by due_lane, lane by lane.
with recursive queues(name) as (
    select (select min(d.queue) from duetime_due as d)
    union all
    select (select min(d.queue) from duetime_due as d where d.queue > q.name)
    from queues as q where q.name is not null
), priorities(priority) as (
    select 0 union all select priority + 1 from priorities where priority < 10
)
select d.job_id
from queues as q cross join priorities as p
cross join duetime_due as d indexed by duetime_due_lane
    on d.queue = q.name and d.priority = p.priority
where q.name is not null and (:queue is null or q.name = :queue)
  and d.run_at >= coalesce(:due_since, -9223372036854775808)
  and d.run_at < coalesce(:due_before, 9223372036854775807)
limit :most;

-- name: job_range
select (select min(j.id) from duetime_job as j), (select max(j.id) from duetime_job as j);

-- name: job_near
-- The first job from this id on, and whether it was created at that time or later.
select j.id, j.created_at >= :moment from duetime_job as j where j.id >= :id order by j.id limit 1;

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
    case when j.task = 'duetime.remind' then json_extract(j.args, '$.reminder') end,
    coalesce((select r.flow from duetime_job as r where r.id = j.id), 0)
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

-- name: cancel_waiting_many
-- The same for several. Returns those that are cancelled.
with input(doc) as (select ?)
insert into duetime_end_waiting (job_id, outcome, error_code, error, at)
select e.value, 'cancelled', json_extract(i.doc, '$.doc.code'), json_extract(i.doc, '$.doc.text'),
    json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc.ids') as e;

-- name: cancel_waiting_many_2
with input(doc) as (select ?)
select j.id from input as i cross join json_each(i.doc, '$.doc.ids') as e
cross join duetime_jobs as j on j.id = e.value
where j.state = 'cancelled';

-- name: hold_claim
with input(doc) as (select ?)
select c.token from input as i
cross join duetime_claim as c on c.job_id = json_extract(i.doc, '$.doc.job')
where c.token = json_extract(i.doc, '$.doc.token');

-- name: bulk_progress
with input(doc) as (select ?)
insert into duetime_progress (job_id, token, progress, at)
select json_extract(doc, '$.doc.job'), json_extract(doc, '$.doc.token'),
    json_extract(doc, '$.doc.progress'), json_extract(doc, '$.now')
from input where true
on conflict (job_id) do update set (token, progress, at)
    = (excluded.token, excluded.progress, excluded.at);

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
-- When a job that waits is due, its priority, and when it expires.
with input(doc) as (select ?)
select d.run_at, d.priority, j.expires_at from input as i
cross join duetime_due as d on d.job_id = json_extract(i.doc, '$.doc.job')
cross join duetime_job as j on j.id = d.job_id
union all
select p.run_at, p.priority, j.expires_at from input as i
cross join duetime_parked as p on p.job_id = json_extract(i.doc, '$.doc.job')
cross join duetime_job as j on j.id = p.job_id;

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

-- name: mark_replay
with input(doc) as (select ?)
update duetime_job set replay_of = (select json_extract(doc, '$.doc.of') from input)
where id = (select json_extract(doc, '$.doc.job') from input);

-- name: lock_jobs
-- Nothing to lock: we are the only one who writes.
with input(doc) as (select ?)
select 1 from input;

-- name: lock_waiting
-- As `lock_jobs`.
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
