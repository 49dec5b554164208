-- Statements that count what waits, runs, is retried, parked or dead. Each reads a bounded number of
-- rows along an index, whatever there is.

-- name: stats_lane_names
-- Every (queue, priority) in which something waits: one probe of due_pkey for each.
with recursive g as materialized (
    select * from json_to_record(%s::json) as g(most integer)
), lane(queue, priority, place) as (
    (select d.queue, d.priority::smallint, 1 from duetime.due as d
     order by d.queue, d.priority limit 1)
    union all
    select n.queue, n.priority::smallint, l.place + 1 from lane as l cross join lateral (
        select d.queue, d.priority from duetime.due as d
        where (d.queue, d.priority) > (l.queue, l.priority)
        order by d.queue, d.priority limit 1) as n
    where l.place < (select most from g)
)
select l.queue, l.priority from lane as l;

-- name: stats_lanes
-- The first due time of each lane, and how many of its first jobs wait, are due, and late: no more than
-- `most` of each lane are read. Served by due_pkey.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(lanes json, due_before timestamptz, late_before timestamptz, most integer)
), lane as materialized (
    select e.value ->> 0 as queue, (e.value ->> 1)::smallint as priority
    from g cross join lateral json_array_elements(g.lanes) as e(value)
)
select l.queue, l.priority, f.first, f.waiting, f.due, f.late
from lane as l cross join lateral (
    select min(w.run_at) as first, count(*) as waiting,
        count(*) filter (where w.run_at <= (select due_before from g)) as due,
        count(*) filter (where w.run_at <= (select late_before from g)) as late
    from (select d.run_at from duetime.due as d
          where d.queue = l.queue and d.priority = l.priority
          order by d.run_at limit (select most from g)) as w
) as f;

-- name: stats_due_tasks
-- The tasks of the first due jobs of each lane. Served by due_pkey and job_pkey.
with g as materialized (
    select * from json_to_record(%s::json) as g(lanes json, due_before timestamptz, most integer)
), lane as materialized (
    select e.value ->> 0 as queue, (e.value ->> 1)::smallint as priority
    from g cross join lateral json_array_elements(g.lanes) as e(value)
)
select j.task, count(*)
from lane as l cross join lateral (
    select d.job_id from duetime.due as d
    where d.queue = l.queue and d.priority = l.priority and d.run_at <= (select due_before from g)
    order by d.run_at limit (select most from g)
) as d
cross join lateral (select j.task from duetime.job as j where j.id = d.job_id offset 0) as j
group by j.task;

-- name: stats_running
-- Workers hold few jobs.
select j.queue, j.task, count(*)
from (select %s::json as doc) as i
cross join duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
cross join lateral (select j.queue, j.task from duetime.job as j where j.id = u.id offset 0) as j
where not exists (select from duetime.attempt as a where a.job_id = u.id and a.token = c.token)
group by j.queue, j.task;

-- name: stats_retrying
-- The jobs that are retried next. Served by due_retrying and job_pkey.
with g as materialized (
    select * from json_to_record(%s::json) as g(most integer)
)
select d.queue, j.task, count(*), min(d.run_at)
from (select d.queue, d.job_id, d.run_at from duetime.due as d where d.attempt > 0
      order by d.run_at limit (select most from g)) as d
cross join lateral (select j.task from duetime.job as j where j.id = d.job_id offset 0) as j
group by d.queue, j.task;

-- name: stats_parked
-- With the reason of one of them. Served by parked_pkey.
with g as materialized (
    select * from json_to_record(%s::json) as g(most integer)
)
select p.queue, p.task, count(*), min(p.parked_at), bool_or(p.unreadable),
    (array_agg(p.reason::text order by p.job_id desc))[1]
from (select * from duetime.parked as p order by p.job_id limit (select most from g)) as p
group by p.queue, p.task;

-- name: stats_dead
-- The newest jobs that died, and whether each is dead still: not if it was requeued. Served by
-- attempt_troubled.
with g as materialized (
    select * from json_to_record(%s::json) as g(most integer)
), newest as materialized (
    -- A constant would let the planner choose attempt_dead, and sort all that ever died.
    select n.* from unnest('{dead}'::text[]) as s(outcome) cross join lateral (
        select a.job_id, a.token, a.finished_at, a.attempt, a.error_code, a.error, a.facts
        from duetime.attempt as a
        where a.outcome = s.outcome and a.outcome <> 'completed'
        order by a.job_id desc limit (select most from g)) as n
)
select n.job_id, j.task, j.queue, n.error_code, n.finished_at, n.attempt, left(n.error, 300),
    n.facts::text, j.flow,
    not exists (select from duetime.attempt as a where a.job_id = n.job_id and a.token > n.token)
    and not exists (select from duetime.due as d where d.job_id = n.job_id)
    and not exists (select from duetime.parked as p where p.job_id = n.job_id)
    and n.job_id not in (select unnest(c.job_ids) from duetime.claim as c)
from newest as n
cross join lateral (select j.task, j.queue, j.flow from duetime.job as j where j.id = n.job_id offset 0) as j;

-- name: stats_queues
-- Only queues that are paused or limited have a row.
select q.name, q.paused_at, q.paused_by, q.pause_reason
from (select %s::json as doc) as i cross join duetime.queue as q;

-- name: stats_totals
-- How many there are of each noun, at most `most`, and the server's own estimates of large tables.
-- Runs of flows are open if they wait for something, or are among the newest and have not ended.
-- Served by due_job, reminder_armed, flow_step_waiting, job_flow, and the primary keys.
with g as materialized (
    select * from json_to_record(%s::json) as g(most integer)
), newest as materialized (
    select j.id from duetime.job as j where j.flow order by j.id desc limit (select most / 5 from g)
), flows as materialized (
    select n.id from newest as n
    where exists (select from duetime.due as d where d.job_id = n.id)
       or exists (select from duetime.parked as p where p.job_id = n.id)
       or n.id in (select unnest(c.job_ids) from duetime.claim as c)
    union
    select w.run_id from (
        select s.run_id from duetime.flow_step as s where s.state in ('waiting', 'retrying')
        order by s.run_id desc limit (select most from g)) as w
)
select (select count(*) from (select from duetime.due as d order by d.job_id
                              limit (select most from g)) as d),
    (select c.reltuples::bigint from pg_catalog.pg_class as c where c.oid = 'duetime.due'::regclass),
    (select count(*) from duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
     where not exists (select from duetime.attempt as a
                       where a.job_id = u.id and a.token = c.token)),
    (select count(*) from (select from duetime.parked as p order by p.job_id
                           limit (select most from g)) as p),
    (select count(*) from (select from duetime.schedule as s order by s.id
                           limit (select most from g)) as s),
    (select count(*) from (select from duetime.reminder as r where r.status = 'armed'
                           order by r.run_at limit (select most from g)) as r),
    (select c.reltuples::bigint from pg_catalog.pg_class as c
     where c.oid = 'duetime.reminder_armed'::regclass),
    (select count(*) from flows),
    (select count(*) from newest) < (select most / 5 from g),
    (select count(*) from duetime.tracked);


-- name: change_mark
-- A number that grows with every change of what people look at, as PostgreSQL counts it: it reads no rows. A
-- session reports what it changed about a second later, one that is idle then after up to ten. Heartbeats and the reports of workers are not counted.
select coalesce(sum(
    pg_stat_get_tuples_inserted(t) + pg_stat_get_tuples_updated(t) + pg_stat_get_tuples_deleted(t)
), 0)::bigint
from unnest(array[
    'duetime.job', 'duetime.due', 'duetime.claim', 'duetime.attempt', 'duetime.queue', 'duetime.schedule',
    'duetime.schedule_tick', 'duetime.subject', 'duetime.reminder', 'duetime.delivery', 'duetime.recipient', 'duetime.scope',
    'duetime.tracked', 'duetime.flow_step', 'duetime.flow_signal', 'duetime.audit'
]::regclass[]) as t;
