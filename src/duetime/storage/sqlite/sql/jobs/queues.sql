-- Statements about queues and workers.

-- name: queue_row
-- The stored row of a queue, for the audit of its changes.
with input(doc) as (select ?)
select q.paused_at, q.paused_by, q.pause_reason, q.running, q.per_partition, q.rate, q.period
from input as i cross join duetime_queue as q on q.name = json_extract(i.doc, '$.doc.queue');

-- name: pause_queue
with input(doc) as (select ?)
insert into duetime_queue (name, paused_at, paused_by, pause_reason)
select json_extract(doc, '$.doc.queue'), json_extract(doc, '$.now'), json_extract(doc, '$.doc.by'),
    json_extract(doc, '$.doc.reason')
from input where true
on conflict (name) do update set (paused_at, paused_by, pause_reason)
    = (coalesce(paused_at, excluded.paused_at), excluded.paused_by, excluded.pause_reason);

-- name: resume_queue
with input(doc) as (select ?)
update duetime_queue set paused_at = null, paused_by = null, pause_reason = null
where name = (select json_extract(doc, '$.doc.queue') from input);

-- name: limit_queue
with input(doc) as (select ?)
insert into duetime_queue (name, running, per_partition, rate, period)
select json_extract(doc, '$.doc.queue'), json_extract(doc, '$.doc.running'),
    json_extract(doc, '$.doc.per_partition'), json_extract(doc, '$.doc.rate'),
    json_extract(doc, '$.doc.period')
from input where true
on conflict (name) do update set (running, per_partition, rate, period)
    = (excluded.running, excluded.per_partition, excluded.rate, excluded.period);

-- name: drop_plain_queue
with input(doc) as (select ?)
delete from duetime_queue
where name = (select json_extract(doc, '$.doc.queue') from input)
  and paused_at is null and coalesce(running, per_partition, rate) is null;

-- name: limited_queues
select name, running, per_partition, rate, period from duetime_queue
where coalesce(running, per_partition, rate) is not null;

-- name: queues
-- All queues, or `only` one, of each of whose lanes no more than `count_to` jobs are counted then.
-- Served by due_lane.
with lane as materialized (
    select p.value as priority,
        (select count(*) from (
            select 1 from duetime_due as d where d.queue = :only and d.priority = p.value
            limit coalesce(:count_to, -1))) as pending,
        (select count(*) from (
            select 1 from duetime_due as d
            where d.queue = :only and d.priority = p.value and d.run_at <= :now
            limit coalesce(:count_to, -1))) as due,
        (select min(d.run_at) from duetime_due as d
         where d.queue = :only and d.priority = p.value) as next_run_at
    from json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]') as p where :only is not null
), waiting as (
    select queue, count(*) as pending, sum(run_at <= :now) as due, min(run_at) as next_run_at,
        1 as counted_all
    from duetime_due where :only is null group by queue
    union all
    select :only, sum(l.pending), sum(l.due), min(l.next_run_at),
        :count_to is null or max(l.pending) < :count_to
    from lane as l having sum(l.pending) > 0
), running as (
    select j.queue, count(*) as running
    from duetime_claim as c join duetime_job as j on j.id = c.job_id group by j.queue
), parked as (
    select queue, count(*) as parked from duetime_parked group by queue
), known as (
    select queue from waiting union select queue from running union select queue from parked
    union select name from duetime_queue
    union select q.value from duetime_worker as w cross join json_each(w.queues) as q
)
select k.queue, coalesce(w.pending, 0), coalesce(w.due, 0), coalesce(r.running, 0),
    coalesce(p.parked, 0), w.next_run_at, q.paused_at, q.paused_by, q.pause_reason,
    q.running, q.per_partition, q.rate, q.period,
    (select coalesce(sum(u.used), 0) from duetime_rate_use as u
     where u.queue = q.name and u.at > :now - q.period), coalesce(w.counted_all, 1)
from known as k
left join waiting as w on w.queue = k.queue
left join running as r on r.queue = k.queue
left join parked as p on p.queue = k.queue
left join duetime_queue as q on q.name = k.queue
where (:after is null or k.queue > :after) and (:only is null or k.queue = :only)
order by k.queue limit coalesce(:limit, -1);

-- name: workers
select w.id, w.name, w.queues, w.tasks, w.concurrency, w.started_at, w.seen_at, w.lease_until,
    (select count(*) from duetime_claim as c where c.worker_id = w.id), w.loop_lag
from duetime_worker as w order by w.id;
