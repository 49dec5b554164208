-- Statements of a worker's registration and heartbeat, and of the rescuer and the pruner.

-- name: register_worker
with registered as (
    insert into duetime.worker (id, name, queues, tasks, concurrency, started_at, seen_at, lease_until)
    select duetime._next_number('duetime.worker_id_seq'), %(name)s, %(queues)s, %(tasks)s,
           %(concurrency)s, moment, moment, moment + %(lease)s
    from (select duetime.now() as moment) as clock
    returning id, name, started_at
), named as (
    insert into duetime.worker_name (id, name, at) select id, name, started_at from registered
)
select id from registered;

-- name: register_tasks
insert into duetime.task (name, queue, priority, max_attempts, timeout, expires, max_args_bytes,
                          flow, updated_at)
select t.*, duetime.now()
from unnest(%(names)s::text[], %(queues)s::text[], %(priorities)s::smallint[],
            %(max_attempts)s::smallint[], %(timeouts)s::interval[], %(expires)s::interval[],
            %(max_args_bytes)s::integer[], %(flows)s::boolean[])
    as t(name, queue, priority, max_attempts, timeout, expires, max_args_bytes, flow)
-- What is stored so already is not locked: many workers of a deployment start at once.
where not exists (
    select from duetime.task as k
    where k.name = t.name
      and (k.queue, k.priority, k.max_attempts, k.timeout, k.expires, k.max_args_bytes, k.flow)
          is not distinct from
          (t.queue, t.priority, t.max_attempts, t.timeout, t.expires, t.max_args_bytes, t.flow))
order by 1
on conflict (name) do update
set (queue, priority, max_attempts, timeout, expires, max_args_bytes, flow, updated_at)
    = (excluded.queue, excluded.priority, excluded.max_attempts, excluded.timeout,
       excluded.expires, excluded.max_args_bytes, excluded.flow, excluded.updated_at);

-- name: remove_worker
-- Only a worker that holds nothing may leave; else its lease runs out and its jobs are rescued.
delete from duetime.worker where id = %(worker)s
    and not exists (select from duetime.claim where worker_id = %(worker)s);

-- name: beat
-- Zero rows: the rescuer has declared this worker dead.
update duetime.worker
set seen_at = duetime.now(), lease_until = duetime.now() + %(lease)s, loop_lag = %(lag)s
where id = %(worker)s and lease_until > duetime.now()
returning (select count(*) from duetime.worker as w where w.id < %(worker)s),
    array(select u.id from duetime.claim as c cross join lateral unnest(c.cancelled) as u(id)
          where c.worker_id = %(worker)s and not exists (
              select from duetime.attempt as a where a.job_id = u.id and a.token = c.token)),
    (select count(*) from duetime.worker as w where w.queues && worker.queues);

-- name: cancelled_jobs
-- As `beat` returns them: held by this worker, cancelled, and not finished yet.
select u.id from duetime.claim as c cross join lateral unnest(c.cancelled) as u(id)
where c.worker_id = %(worker)s and not exists (
    select from duetime.attempt as a where a.job_id = u.id and a.token = c.token);

-- name: poll
-- How the queues of a worker stand. `lanes`: the queues of which to read what is due next. One probe of due_pkey for each lane, also of those with limits:
-- the worker then claims, and sees by itself whether there is room. Locks nothing.
select duetime.now(),
    (select min(least(d.run_at, '9999-01-01Z'))
     from unnest(%(lanes)s::text[]) as l(queue)
     cross join generate_series(0, 9) as p(priority)
     cross join lateral (
         select due.run_at from duetime.due
         where due.queue = l.queue and due.priority = p.priority
         order by due.run_at, due.job_id limit 1
     ) as d
     where not exists (select from duetime.queue as q
                       where q.name = l.queue and q.paused_at is not null)),
    array(select q.name from duetime.queue as q
          where q.name = any (%(queues)s::text[])
            and coalesce(q.running, q.per_partition, q.rate) is not null),
    exists (select from duetime.parked as p
            where p.task = any (%(tasks)s::text[]) and p.queue = any (%(queues)s::text[])
              and not p.unreadable and p.job_id <> all (%(sparing)s::bigint[])),
    exists (select from unnest(%(queues)s::text[]) as l(queue)
            cross join lateral (
                select from duetime.due
                where due.queue = l.queue and due.priority = 10
                  and due.run_at <= (select duetime.now())
                limit 1) as d);

-- name: any_dead
-- Whether the rescuer has anything to do.
select exists (select from duetime.worker as w where w.lease_until <= (select duetime.now()))
    or exists (select from duetime.claim as c
               where c.worker_id <> %(sparing)s
                 and c.worker_id not in (select w.id from duetime.worker as w));

-- name: due_ids
-- The next jobs of these queues, by their ids alone: whatever their rows hold, this can be read.
select d.job_id
from unnest(%(queues)s::text[]) as l(queue)
cross join generate_series(0, 10) as p(priority)
cross join lateral (
    select due.job_id from duetime.due
    where due.queue = l.queue and due.priority = p.priority
    order by due.run_at, due.job_id limit %(most)s
) as d;

-- name: read_due
-- One waiting job, as a claim reads it.
select d.run_at, (d.attempt + 1)::smallint, j.task, d.queue, d.priority, j.args::text, j.max_attempts,
    j.key, j.partition, j.timeout, j.expires_at, j.trace::text
from duetime.due as d join duetime.job as j on j.id = d.job_id
where d.job_id = %(job)s;

-- name: park_unreadable
with taken as (
    delete from duetime.due where job_id = %(job)s returning *
)
insert into duetime.parked (job_id, queue, task, priority, run_at, attempt, partition, reason,
                            parked_at, unreadable)
select t.job_id, t.queue, j.task, t.priority, duetime.now(), greatest(least(t.attempt, 20000), 0),
    t.partition, %(reason)s::json, duetime.now(), true
from taken as t join duetime.job as j on j.id = t.job_id
returning job_id;

-- name: unpark
with taken as (
    delete from duetime.parked where job_id in (
        select job_id from duetime.parked
        where task = any (%(tasks)s::text[]) and queue = any (%(queues)s::text[])
          and not unreadable and job_id <> all (%(sparing)s::bigint[])
        limit 1000 for update skip locked)
    returning *
), back as materialized (
    select duetime._wait_again(array_agg(job_id), array_agg(run_at), array_agg(attempt),
                               array_agg(priority), notify => false)
    from taken
)
select count(*) from taken cross join (select count(*) from back) as waiting;

-- name: set_progress
insert into duetime.progress (job_id, token, progress, at)
select %(job)s, %(token)s, %(progress)s::json, duetime.now()
where exists (select from duetime.claim
              where token = %(token)s and %(job)s = any (job_ids))
  and not exists (select from duetime.attempt where job_id = %(job)s and token = %(token)s)
on conflict (job_id) do update set (token, progress, at) = (excluded.token, excluded.progress, excluded.at)
returning true;

-- name: lock_dead_claims
-- The claims of workers whose lease ran out, or that are gone. Locked before they are read
-- again: a finish in flight has then either committed, or will find its claim gone.
select c.token from duetime.claim as c
left join duetime.worker as w on w.id = c.worker_id
where (w.id is null or w.lease_until <= (select duetime.now())) and c.worker_id <> %(sparing)s
order by c.token
limit 100
for update of c skip locked;

-- name: rescue
-- The jobs of the locked claims are recorded as lost. The attempt counts; a job that was lost before goes to the
-- quarantine lane, where it runs alone, so that it cannot take others down with it.
-- A claim that was made after the lease, or committed after its worker was buried, cannot have
-- begun: its jobs are given back, and the attempt does not count.
with held as (
    delete from duetime.claim where token = any (%(tokens)s::bigint[])
    returning token, worker_id, claimed_at, job_ids, attempts, cancelled, cancel_reasons, queue
), lost as materialized (
    select h.token, h.worker_id, h.claimed_at, u.job_id, u.attempt,
        coalesce(u.job_id = any (h.cancelled), false) as cancelled,
        h.cancel_reasons[array_position(h.cancelled, u.job_id)] as reason,
        not exists (select from duetime.worker as w
                    where w.id = h.worker_id and w.lease_until > h.claimed_at) as too_late,
        (select count(*) from duetime.attempt as a
         where a.job_id = u.job_id and a.outcome = 'lost') as times
    from held as h cross join lateral unnest(h.job_ids, h.attempts) as u(job_id, attempt)
    where not exists (select from duetime.attempt as a
                      where a.job_id = u.job_id and a.token = h.token)
), fate as materialized (
    select l.*, j.task, j.queue,
        case when l.cancelled then 'cancelled'
             when l.too_late then 'given back'
             when l.attempt >= coalesce(t.max_attempts, j.max_attempts) then 'dead'
             else 'lost' end as outcome
    from lost as l join duetime.job as j on j.id = l.job_id
    -- Reminders may be armed before any worker has registered how many attempts they have.
    left join duetime.task as t on t.name = j.task
        and j.task in ('duetime' || '.remind', 'duetime' || '.digest')
), recorded as (
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                 finished_at, error_code, error)
    select f.job_id, f.token, f.attempt, f.worker_id, f.outcome, f.claimed_at, duetime.now(),
           case when f.outcome = 'cancelled' then 'cancelled_worker_lost' else 'worker_lost' end,
           case when f.outcome = 'cancelled' then f.reason -> 'facts' ->> 'text' end
    from fate as f where f.outcome <> 'given back'
), again as materialized (
    select duetime._wait_again(
        array_agg(f.job_id),
        -- It may have been claimed ahead of its time, and must not be early now.
        array_agg(greatest(
            least(f.claimed_at, duetime.now()) + %(lead)s::interval,
            duetime.now() + case when f.times = 0 or f.outcome = 'given back' then interval '0'
                                 else least(power(2, f.times - 1), 60) * interval '1 second' end)),
        array_agg(f.attempt - (f.outcome = 'given back')::integer),
        array_agg(case when f.times + (f.outcome = 'lost')::integer >= 2 then 10 end),
        notify => false)
    from fate as f where f.outcome in ('lost', 'given back')
), freed as (
    delete from duetime.job_key as k using fate as f
    where k.job_id = f.job_id and f.outcome in ('dead', 'cancelled')
), woken as materialized (
    select count(duetime.wake(q.queue)) from (
        select queue from fate union select queue from held where queue is not null
        order by 1) as q
), notified as materialized (
    select count(pg_notify('duetime.finished', f.job_id::text)) from fate as f
    where f.outcome in ('dead', 'cancelled')
      and exists (select from duetime.waiter as w where w.job_id = f.job_id)
)
select f.job_id, f.task, f.attempt - (f.outcome = 'given back')::integer, f.outcome,
    coalesce(n.name, f.worker_id::text)
from fate as f left join duetime.worker_name as n on n.id = f.worker_id, woken, notified,
    (select count(*) from again) as waiting;

-- name: bury_workers
-- Dead workers that no longer hold anything.
delete from duetime.worker where id in (
    select w.id from duetime.worker as w
    where w.lease_until <= (select duetime.now())
      and not exists (select from duetime.claim as c where c.worker_id = w.id)
    for update skip locked);

-- name: find_prunable
-- Checks some jobs, by id, and returns those that finished long enough ago, and the id after which to
-- continue: 0 if all were checked, or the rest is too young. By the primary keys: an index on the
-- finish time would cost every completion, and the few jobs that are kept for long would make it
-- useless.
with ages as materialized (
    select outcome, age from unnest(%(outcomes)s::text[], %(ages)s::interval[]) as g(outcome, age)
), page as materialized (
    select j.id, j.created_at < (select duetime.now() - min(age) from ages) as old
    from duetime.job as j where j.id > %(after)s order by j.id limit %(checked)s
), finished as materialized (
    select p.id from page as p
    cross join lateral (select a.outcome, a.finished_at from duetime.attempt as a
                        where a.job_id = p.id order by a.token desc limit 1) as a
    join ages as g on g.outcome = a.outcome
    where p.old and a.finished_at < (select duetime.now()) - g.age
    order by p.id limit %(batch)s
), last as (
    select (select max(id) from finished) as finished, (select count(*) from finished) as found,
        (select max(id) from page) as id, (select count(*) from page) as checked,
        -- Any: a single job that was made while the clock was wrong does not count.
        (select bool_or(old) from page) as old
)
select array(select id from finished),
    case when l.found = %(batch)s then l.finished
         when l.checked = %(checked)s and l.old then l.id
         else 0 end
from last as l;

-- name: lock_prunable
-- Locked, and then checked again by `prune`: a requeue in flight has either committed by then, or
-- waits for us.
select id from duetime.job where id = any (%(jobs)s::bigint[]) order by id for update skip locked;

-- name: prune
with ages as materialized (
    select outcome, age from unnest(%(outcomes)s::text[], %(ages)s::interval[]) as g(outcome, age)
), old as materialized (
    select a.job_id from duetime.attempt as a join ages as g on g.outcome = a.outcome
    where a.job_id = any (%(jobs)s::bigint[])
      and a.finished_at < (select duetime.now()) - g.age
      and not exists (select from duetime.attempt as b
                      where b.job_id = a.job_id and b.token > a.token)
      and not exists (select from duetime.due as d where d.job_id = a.job_id)
      and not exists (select from duetime.parked as p where p.job_id = a.job_id)
      -- Not `exists`: that would read every claim for each job.
      and a.job_id not in (select unnest(c.job_ids) from duetime.claim as c)
), history as (
    delete from duetime.attempt where job_id in (select job_id from old)
), progress as (
    delete from duetime.progress where job_id in (select job_id from old)
), steps as (
    delete from duetime.flow_step where run_id in (select job_id from old)
), signals as (
    delete from duetime.flow_signal where run_id in (select job_id from old)
), shapes as (
    delete from duetime.flow_run where run_id in (select job_id from old)
), gone as (
    delete from duetime.job where id in (select job_id from old) returning id
)
select count(*) from gone;

-- name: end_parked
-- Jobs that no worker could run for so long end as dead: they are visible as such, can be requeued,
-- and are pruned. Few jobs are parked.
with old as materialized (
    select p.job_id, p.reason from duetime.parked as p
    where p.parked_at < (select duetime.now()) - %(age)s::interval
    order by p.job_id limit %(batch)s for update skip locked
)
select duetime._end_waiting(array_agg(o.job_id), 'dead',
                            reasons => array_agg(json_build_object('code', %(code)s::text, 'facts', json_build_object('why', o.reason))))
from old as o;

-- name: prune_leftovers
with keys as (
    delete from duetime.job_key where held_until <= duetime.now()
), waiters as (
    delete from duetime.waiter where until <= duetime.now()
)
delete from duetime.worker_name where at < duetime.now() - %(age)s
    and id not in (select id from duetime.worker);
