-- Statements about queues and workers.

-- name: queue_row
-- The stored row of a queue, for the audit of its changes; its period in microseconds.
select q.paused_at, q.paused_by, q.pause_reason, q.running, q.per_partition, q.rate,
    (extract(epoch from q.period) * 1000000)::bigint
from duetime.queue as q where q.name = %s::json ->> 'queue' for update;

-- name: pause_queue
insert into duetime.queue as q (name, paused_at, paused_by, pause_reason)
select i.doc ->> 'queue', duetime.now(), i.doc ->> 'by', i.doc ->> 'reason'
from (select %s::json as doc) as i
on conflict (name) do update set (paused_at, paused_by, pause_reason)
    = (coalesce(q.paused_at, excluded.paused_at), excluded.paused_by, excluded.pause_reason);

-- name: resume_queue
with resumed as (
    update duetime.queue set paused_at = null, paused_by = null, pause_reason = null
    where name = %s::json ->> 'queue' returning name
)
select duetime.wake(name) from resumed;

-- name: limit_queue
with changed as (
    insert into duetime.queue (name, running, per_partition, rate, period)
    select i.doc ->> 'queue', (i.doc ->> 'running')::integer, (i.doc ->> 'per_partition')::integer,
        (i.doc ->> 'rate')::integer, (i.doc ->> 'period')::bigint * interval '1 microsecond'
    from (select %s::json as doc) as i
    on conflict (name) do update set (running, per_partition, rate, period)
        = (excluded.running, excluded.per_partition, excluded.rate, excluded.period)
    returning name
)
select duetime.wake(name) from changed;

-- name: drop_plain_queue
delete from duetime.queue
where name = %s::json ->> 'queue' and paused_at is null
  and coalesce(running, per_partition, rate) is null;

-- name: limited_queues
select name, running, per_partition, rate, period from duetime.queue
where coalesce(running, per_partition, rate) is not null;

-- name: queues
-- All queues, or `only` one, of each of whose lanes no more than `count_to` jobs are counted then.
-- Served by due_pkey.
with waiting as (
    select d.queue, count(*) as pending, count(*) filter (where d.run_at <= duetime.now()) as due,
        min(d.run_at) as next_run_at, true as counted_all
    from duetime.due as d where %(only)s::text is null group by d.queue
    union all
    select %(only)s, sum(l.pending)::bigint, sum(l.due)::bigint, min(l.next_run_at),
        %(count_to)s::bigint is null or bool_and(l.pending < %(count_to)s)
    from generate_series(0, 10) as p(priority) cross join lateral (
        select count(*) as pending, count(*) filter (where d.run_at <= duetime.now()) as due,
            min(d.run_at) as next_run_at
        from (select d.run_at from duetime.due as d
              where d.queue = %(only)s and d.priority = p.priority
              order by d.run_at limit %(count_to)s) as d) as l
    where %(only)s is not null having sum(l.pending) > 0
), running as (
    select j.queue, count(*) as running
    from duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
    join duetime.job as j on j.id = u.id
    where not exists (select from duetime.attempt as a where a.job_id = u.id and a.token = c.token)
    group by j.queue
), parked as (
    select queue, count(*) as parked from duetime.parked group by queue
), known as (
    select queue from waiting union select queue from running union select queue from parked
    union select name from duetime.queue
    union select unnest(queues) from duetime.worker
)
select k.queue, coalesce(w.pending, 0), coalesce(w.due, 0), coalesce(r.running, 0),
    coalesce(p.parked, 0), w.next_run_at, q.paused_at, q.paused_by, q.pause_reason,
    q.running, q.per_partition, q.rate, q.period,
    (select coalesce(sum(u.used), 0) from duetime.rate_use as u
     where u.queue = q.name and u.at > duetime.now() - q.period), coalesce(w.counted_all, true)
from known as k
left join waiting as w on w.queue = k.queue
left join running as r on r.queue = k.queue
left join parked as p on p.queue = k.queue
left join duetime.queue as q on q.name = k.queue
where (%(after)s::text is null or k.queue > %(after)s) and (%(only)s is null or k.queue = %(only)s)
order by k.queue limit %(limit)s;

-- name: workers
select w.id, w.name, w.queues, w.tasks, w.concurrency, w.started_at, w.seen_at, w.lease_until,
    (select count(*) from duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
     where c.worker_id = w.id and not exists (
        select from duetime.attempt as a where a.job_id = u.id and a.token = c.token)),
    w.loop_lag
from duetime.worker as w order by w.id;
