-- Statements that find runs of flows. `flow_…ids` return a page of runs that may match, newest first,
-- those below `before`. Of other jobs they read none, or those only that stand in the same table.

-- name: flow_ids
-- Served by job_flow.
with g as materialized (
    select * from json_to_record(%s::json) as g(before bigint, page integer, flow text)
)
select j.id from duetime.job as j
where j.flow and j.id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_keyed_ids
-- Served by job_by_key.
with g as materialized (
    select * from json_to_record(%s::json) as g(before bigint, page integer, flow text, key text)
)
select j.id from duetime.job as j
where j.key = (select key from g) and j.flow and j.id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_due_ids
-- Runs whose job waits: for a worker, after a crash, for the jobs of its graph, or for its
-- compensations. Served by job_flow and due_job.
with g as materialized (
    select g.*, array(select json_array_elements_text(g.states)) as wanted
    from json_to_record(%s::json) as g(before bigint, page integer, flow text, states json)
)
select j.id from duetime.job as j join duetime.due as d on d.job_id = j.id
where j.flow and j.id < (select before from g) and d.job_id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
  and ('pending' = any ((select wanted from g)::text[])
           and (d.run_at <= duetime.now()
                or not exists (select from duetime.attempt as a where a.job_id = j.id))
       or 'retrying' = any ((select wanted from g)::text[]) and d.attempt > 0
       or 'running' = any ((select wanted from g)::text[])
           and exists (select from duetime.flow_run as f where f.run_id = j.id)
       or 'compensating' = any ((select wanted from g)::text[])
           and exists (select from duetime.flow_step as s where s.run_id = j.id and s.seq = 0))
order by j.id desc limit (select page from g);

-- name: flow_open_ids
-- Runs that wait, sleep or are retried, in one of their calls at least. Served by flow_step_waiting.
with g as materialized (
    select g.*, array(select json_array_elements_text(g.states)) as wanted
    from json_to_record(%s::json) as g(before bigint, page integer, flow text, states json)
)
select distinct s.run_id from duetime.flow_step as s
where s.state in ('waiting', 'retrying') and s.run_id < (select before from g)
  and case when s.state = 'retrying' then 'retrying' when s.kind = 'sleep' then 'sleeping'
           else 'waiting' end = any ((select wanted from g)::text[])
  and ((select flow from g) is null
       or exists (select from duetime.job as j
                  where j.id = s.run_id and j.task = (select flow from g) offset 0))
order by s.run_id desc limit (select page from g);

-- name: flow_running_ids
-- Workers hold few jobs.
with g as materialized (
    select * from json_to_record(%s::json) as g(before bigint, page integer, flow text)
)
select j.id from duetime.claim as c cross join lateral unnest(c.job_ids) as u(id)
cross join lateral (select * from duetime.job as j where j.id = u.id offset 0) as j
where j.flow and j.id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_parked_ids
-- Served by parked_pkey.
with g as materialized (
    select * from json_to_record(%s::json) as g(before bigint, page integer, flow text)
)
select j.id from duetime.parked as p
cross join lateral (select * from duetime.job as j where j.id = p.job_id offset 0) as j
where j.flow and j.id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_troubled_ids
-- Runs that ended so. Served by attempt_troubled and job_pkey.
with g as materialized (
    select * from json_to_record(%s::json) as g(before bigint, page integer, flow text, outcomes json)
)
select t.id
from json_array_elements_text((select outcomes from g)) as w(state) cross join lateral (
    select j.id from duetime.attempt as a
    cross join lateral (select * from duetime.job as j where j.id = a.job_id offset 0) as j
    where a.outcome = w.state and a.outcome <> 'completed' and a.job_id < (select before from g)
      and j.flow
      and ((select flow from g) is null or j.task = (select flow from g))
    order by a.job_id desc limit (select page from g)
) as t
order by t.id desc limit (select page from g);

-- name: flow_undone_ids
-- Runs with compensations that have not run. Served by flow_step_compensation.
with g as materialized (
    select * from json_to_record(%s::json) as g(before bigint, page integer, flow text)
)
select distinct s.run_id from duetime.flow_step as s
where s.kind = 'compensation' and s.state = 'registered' and s.run_id < (select before from g)
order by s.run_id desc limit (select page from g);

-- name: flow_infos
-- Runs as people see them.
with g as materialized (
    select * from json_to_record(%s::json) as g(ids json, "full" boolean)
)
select j.id, j.task, j.queue, j.priority, j.state, j.args::text, j.key, j.run_at, j.created_at,
    j.finished_at, j.worker, j.claimed_at, j.error_code, j.error, j.facts::text,
    j.parked_reason::text,
    (select a.started_at from duetime.attempt as a
     where a.job_id = j.id and a.started_at is not null order by a.token limit 1),
    (select s.kind from duetime.flow_step as s where s.run_id = j.id and s.seq = 0),
    j.state in ('dead', 'cancelled', 'superseded', 'expired') and exists (
        select from duetime.jobs as u
        where u.key = 'flow-undo:' || j.id
          and u.state in ('pending', 'retrying', 'parked', 'running')),
    case when (select "full" from g) then
        (select a.result::text from duetime.attempt as a
         where a.job_id = j.id and a.outcome = 'completed' order by a.token desc limit 1) end
from duetime.jobs as j
where j.id = any (array(select value::bigint from json_array_elements_text((select ids from g))))
  and exists (select from duetime.job as r where r.id = j.id and r.flow);

-- name: flow_open_steps
-- What runs wait for, in order, at most 100 of each: sleeps, signals, retries, jobs, and of a graph
-- the steps that run. Served by flow_step_waiting; of graphs by the primary key.
select s.run_id, s.seq, s.kind, s.name, s.state, s.attempt, null, s.error_code, s.error, s.until,
    s.correlation, s.job_id, s.started_at, s.finished_at
from (select value::bigint as id from json_array_elements_text(%s::json)) as r
cross join lateral (
    select o.* from (
        select * from duetime.flow_step as s
        where s.run_id = r.id and s.state in ('waiting', 'retrying')
        union all
        select * from duetime.flow_step as s
        where s.run_id = r.id and s.state = 'running' and s.seq between 1 and 1000
          and exists (select from duetime.flow_run as f where f.run_id = r.id)
    ) as o order by o.seq limit 100
) as s
order by s.run_id, s.seq;
