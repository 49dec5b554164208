-- Statements that count what waits, runs, is retried, parked or dead. Each reads a bounded number of
-- rows along an index, whatever there is.

-- name: stats_lane_names
-- Every (queue, priority) in which something waits: one probe of due_lane for each.
with recursive input(doc) as (select ?), queue(name, place) as (
    select (select d.queue from duetime_due as d order by d.queue limit 1), 1
    union all
    select (select d.queue from duetime_due as d where d.queue > q.name order by d.queue limit 1),
        q.place + 1
    from queue as q
    where q.name is not null and q.place < (select json_extract(doc, '$.doc.most') from input)
)
select q.name, p.value
from queue as q cross join json_each('[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]') as p
where q.name is not null
  and exists (select 1 from duetime_due as d where d.queue = q.name and d.priority = p.value);

-- name: stats_lanes
-- The first due time of each lane, and how many of its first jobs wait, are due, and late: no more than
-- `most` of each lane are read. Served by due_lane.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.due_before') as due_before,
        json_extract(doc, '$.doc.late_before') as late_before,
        json_extract(doc, '$.doc.most') as most from input
), lane as materialized (
    select json_extract(e.value, '$[0]') as queue, json_extract(e.value, '$[1]') as priority
    from input cross join json_each(doc, '$.doc.lanes') as e
)
select l.queue, l.priority,
    (select d.run_at from duetime_due as d
     where d.queue = l.queue and d.priority = l.priority order by d.run_at limit 1),
    (select count(*) from (
        select 1 from duetime_due as d where d.queue = l.queue and d.priority = l.priority
        limit (select most from g))),
    (select count(*) from (
        select 1 from duetime_due as d
        where d.queue = l.queue and d.priority = l.priority and d.run_at <= (select due_before from g)
        limit (select most from g))),
    (select count(*) from (
        select 1 from duetime_due as d
        where d.queue = l.queue and d.priority = l.priority and d.run_at <= (select late_before from g)
        limit (select most from g)))
from lane as l;

-- name: stats_due_tasks
-- The tasks of the first due jobs of each lane. Served by due_lane and the primary key.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.due_before') as due_before,
        json_extract(doc, '$.doc.most') as most from input
), lane as materialized (
    select json_extract(e.value, '$[0]') as queue, json_extract(e.value, '$[1]') as priority
    from input cross join json_each(doc, '$.doc.lanes') as e
), first as materialized (
    select (
        select json_group_array(f.job_id) from (
            select d.job_id from duetime_due as d
            where d.queue = l.queue and d.priority = l.priority
              and d.run_at <= (select due_before from g)
            order by d.run_at limit (select most from g)) as f
    ) as ids from lane as l
)
select j.task, count(*)
from first as f cross join json_each(f.ids) as e cross join duetime_job as j on j.id = e.value
group by j.task;

-- name: stats_running
-- Workers hold few jobs.
with input(doc) as (select ?)
select j.queue, j.task, count(*)
from input cross join duetime_claim as c cross join duetime_job as j on j.id = c.job_id
group by j.queue, j.task;

-- name: stats_retrying
-- The jobs that are retried next. Served by due_retrying and the primary key.
with input(doc) as (select ?), next as materialized (
    select d.queue, d.job_id, d.run_at
    from duetime_due as d indexed by duetime_due_retrying where d.attempt > 0
    order by d.run_at limit (select json_extract(doc, '$.doc.most') from input)
)
select n.queue, j.task, count(*), min(n.run_at)
from next as n cross join duetime_job as j on j.id = n.job_id
group by n.queue, j.task;

-- name: stats_parked
-- With the reason of one of them. Served by the primary key.
with input(doc) as (select ?)
select p.queue, p.task, count(*), min(p.parked_at), max(p.unreadable), max(p.reason)
from (select * from duetime_parked
      order by job_id limit (select json_extract(doc, '$.doc.most') from input)) as p
group by p.queue, p.task;

-- name: stats_dead
-- The newest jobs that died, and whether each is dead still: not if it was requeued. Served by
-- attempt_ended.
with input(doc) as (select ?), newest as materialized (
    select a.job_id, a.token, a.finished_at, a.attempt, a.error_code, a.error, a.facts
    from duetime_attempt as a where a.outcome = 'dead'
    order by a.finished_at desc limit (select json_extract(doc, '$.doc.most') from input)
)
select n.job_id, j.task, j.queue, n.error_code, n.finished_at, n.attempt, substr(n.error, 1, 300),
    n.facts, j.flow,
    not exists (select 1 from duetime_attempt as a where a.job_id = n.job_id and a.token > n.token)
    and not exists (select 1 from duetime_due as d where d.job_id = n.job_id)
    and not exists (select 1 from duetime_parked as p where p.job_id = n.job_id)
    and not exists (select 1 from duetime_claim as c where c.job_id = n.job_id)
from newest as n cross join duetime_job as j on j.id = n.job_id;

-- name: stats_queues
-- Only queues that are paused or limited have a row.
with input(doc) as (select ?)
select q.name, q.paused_at, q.paused_by, q.pause_reason from input cross join duetime_queue as q;

-- name: stats_totals
-- How many there are of each noun, at most `most`. Runs of flows are open if they wait for something,
-- or are among the newest and have not ended. Served by due_lane, reminder_armed, flow_step_waiting,
-- job_flow, and the primary keys.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.most') as most from input
), newest as materialized (
    select j.id from duetime_job as j indexed by duetime_job_flow where j.flow = 1
    order by j.id desc limit (select most / 5 from g)
), flows as materialized (
    select n.id from newest as n
    where exists (select 1 from duetime_due as d where d.job_id = n.id)
       or exists (select 1 from duetime_parked as p where p.job_id = n.id)
       or exists (select 1 from duetime_claim as c where c.job_id = n.id)
    union
    select w.run_id from (
        select s.run_id from duetime_flow_step as s indexed by duetime_flow_step_waiting
        where s.state in ('waiting', 'retrying') order by s.run_id desc
        limit (select most from g)) as w
)
select (select count(*) from (select 1 from duetime_due limit (select most from g))),
    null,
    (select count(*) from duetime_claim),
    (select count(*) from (select 1 from duetime_parked limit (select most from g))),
    (select count(*) from (select 1 from duetime_schedule limit (select most from g))),
    (select count(*) from (
        select 1 from duetime_reminder as r indexed by duetime_reminder_armed
        where r.status = 'armed' limit (select most from g))),
    null,
    (select count(*) from flows),
    (select count(*) from newest) < (select most / 5 from g),
    (select count(*) from duetime_tracked);
