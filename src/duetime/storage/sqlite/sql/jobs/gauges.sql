-- What metrics read of the whole file. Each statement reads a bounded number of rows, but for one
-- that counts them.

-- name: gauge_sizes
-- How many jobs wait; twice, as the count is exact. SQLite counts a million rows in milliseconds.
with input(doc) as (select ?)
select n.waiting, n.waiting from input cross join (select count(*) as waiting from duetime_due) as n;

-- name: gauge_waiting
-- The jobs that wait, by task: due and later. For few of them.
with input(doc) as (select ?)
select t.name, sum(d.run_at <= json_extract(input.doc, '$.now')), sum(d.run_at > json_extract(input.doc, '$.now'))
from input cross join duetime_due as d
join duetime_job as j on j.id = d.job_id
left join duetime_task as t on t.name = j.task
group by t.name;

-- name: gauge_waiting_sample
-- As `gauge_waiting`, of a sample: so many probes of the primary key, each at a random id of its
-- part of all ids. Not at evenly spaced ids: tasks are often enqueued in turn.
with recursive input(doc) as (select ?),
bounds(first, last, probes) as (
    select (select min(job_id) from duetime_due), (select max(job_id) from duetime_due),
        json_extract(doc, '$.doc.probes') from input
), place(n) as (
    select 1 union all select n + 1 from place, bounds where n < probes
), probe(job_id) as materialized (
    select b.first + cast((b.last - b.first)
        * ((p.n - abs(random() % 1000000) / 1e6) / b.probes) as integer)
    from bounds as b cross join place as p
), sampled(job_id) as (
    select distinct (
        select d.job_id from duetime_due as d
        where d.job_id >= p.job_id order by d.job_id limit 1)
    from probe as p
)
select t.name, sum(d.run_at <= json_extract(input.doc, '$.now')), sum(d.run_at > json_extract(input.doc, '$.now'))
from input cross join sampled as s
join duetime_due as d on d.job_id = s.job_id
join duetime_job as j on j.id = d.job_id
left join duetime_task as t on t.name = j.task
group by t.name;

-- name: gauge_oldest
-- For each queue, how long ago its first job fell due, in seconds, and whether it is paused: one
-- probe of due_lane for each lane.
with input(doc) as (select ?), first as materialized (
    select json_extract(e.value, '$[0]') as queue, (
        select d.run_at from duetime_due as d
        where d.queue = json_extract(e.value, '$[0]') and d.priority = json_extract(e.value, '$[1]')
        order by d.run_at limit 1) as run_at
    from input cross join json_each(doc, '$.doc') as e
)
select f.queue, max(0.0, (json_extract(input.doc, '$.now') - min(f.run_at)) / 1e6),
    exists (select 1 from duetime_queue as q where q.name = f.queue and q.paused_at is not null)
from input cross join first as f where f.run_at is not null group by f.queue;

-- name: gauge_dead
-- Of the newest attempts that ended as dead, how many jobs have not been requeued since.
-- attempt_ended; due and the primary key of attempt for each.
with input(doc) as (select ?)
select count(*)
from (
    select a.job_id, a.token from duetime_attempt as a
    where a.outcome = 'dead' order by a.finished_at desc
    limit (select json_extract(doc, '$.doc.most') from input)
) as n
where not exists (select 1 from duetime_due as d where d.job_id = n.job_id)
  and not exists (
    select 1 from duetime_attempt as b where b.job_id = n.job_id and b.token > n.token);

-- name: gauge_counts
-- Jobs that are parked and live workers; schedules, and those that are neither paused nor broken; ticks
-- that were found missed in the last hour, by schedule_tick_missed.
with input(doc) as (select ?)
select
    (select count(*) from (
        select 1 from duetime_parked limit (select json_extract(doc, '$.doc.most') from input))),
    (select count(*) from duetime_worker as w where w.lease_until > json_extract(input.doc, '$.now')),
    (select count(*) from (
        select 1 from duetime_schedule limit (select json_extract(doc, '$.doc.schedules') from input))),
    (select count(*) from (
        select 1 from duetime_schedule as s where s.paused_at is null and s.broken is null
        limit (select json_extract(doc, '$.doc.schedules') from input))),
    (select count(*) from (
        select 1 from duetime_schedule_tick as o indexed by duetime_schedule_tick_missed
        where o.status in ('skipped', 'coalesced')
          and o.finished_at > (select json_extract(doc, '$.now') - 3600000000 from input)
          and json_extract(o.reason, '$.code') in (
            select c.value from input cross join json_each(doc, '$.doc.missed') as c)
        order by o.finished_at desc limit (select json_extract(doc, '$.doc.most') from input)))
from input;

-- name: gauge_dead_tuples
-- SQLite has none.
with input(doc) as (select ?) select null, null from input where false;
