-- Statements that find runs of flows. `flow_…ids` return a page of runs that may match, newest first,
-- those below `before`. Of other jobs they read none, or those only that stand in the same table.

-- name: flow_ids
-- Served by job_flow.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.page') as page,
        json_extract(doc, '$.doc.flow') as flow from input
)
select j.id from duetime_job as j indexed by duetime_job_flow
where j.flow = 1 and j.id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_keyed_ids
-- Served by job_by_key.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.page') as page,
        json_extract(doc, '$.doc.flow') as flow, json_extract(doc, '$.doc.key') as key from input
)
select j.id from duetime_job as j indexed by duetime_job_by_key
where j.key = (select key from g) and j.flow = 1 and j.id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_due_ids
-- Runs whose job waits: for a worker, after a crash, for the jobs of its graph, or for its
-- compensations. Served by job_flow.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.page') as page,
        json_extract(doc, '$.doc.flow') as flow, json_extract(doc, '$.now') as now from input
), wanted as materialized (
    select value as state from input cross join json_each(doc, '$.doc.states')
)
select j.id from duetime_job as j indexed by duetime_job_flow
cross join duetime_due as d on d.job_id = j.id
where j.flow = 1 and j.id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
  and ('pending' in (select state from wanted)
           and (d.run_at <= (select now from g)
                or not exists (select 1 from duetime_attempt as a where a.job_id = j.id))
       or 'retrying' in (select state from wanted) and d.attempt > 0
       or 'running' in (select state from wanted)
           and exists (select 1 from duetime_flow_run as f where f.run_id = j.id)
       or 'compensating' in (select state from wanted)
           and exists (select 1 from duetime_flow_step as s where s.run_id = j.id and s.seq = 0))
order by j.id desc limit (select page from g);

-- name: flow_open_ids
-- Runs that wait, sleep or are retried, in one of their calls at least. Served by flow_step_waiting.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.page') as page,
        json_extract(doc, '$.doc.flow') as flow from input
)
select distinct s.run_id from duetime_flow_step as s indexed by duetime_flow_step_waiting
where s.state in ('waiting', 'retrying') and s.run_id < (select before from g)
  and case when s.state = 'retrying' then 'retrying' when s.kind = 'sleep' then 'sleeping'
           else 'waiting' end in (select value from input cross join json_each(doc, '$.doc.states'))
  and ((select flow from g) is null
       or exists (select 1 from duetime_job as j
                  where j.id = s.run_id and j.task = (select flow from g)))
order by s.run_id desc limit (select page from g);

-- name: flow_running_ids
-- Workers hold few jobs.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.page') as page,
        json_extract(doc, '$.doc.flow') as flow from input
)
select j.id from duetime_claim as c cross join duetime_job as j on j.id = c.job_id
where j.flow = 1 and c.job_id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_parked_ids
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.page') as page,
        json_extract(doc, '$.doc.flow') as flow from input
)
select j.id from duetime_parked as p cross join duetime_job as j on j.id = p.job_id
where j.flow = 1 and p.job_id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_troubled_ids
-- Runs that ended so. Served by attempt_ended.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.page') as page,
        json_extract(doc, '$.doc.flow') as flow from input
)
select j.id from duetime_attempt as a indexed by duetime_attempt_ended
cross join duetime_job as j on j.id = a.job_id
where a.outcome in (select value from input cross join json_each(doc, '$.doc.outcomes'))
  and j.flow = 1 and a.job_id < (select before from g)
  and ((select flow from g) is null or j.task = (select flow from g))
order by j.id desc limit (select page from g);

-- name: flow_undone_ids
-- Runs with compensations that have not run. Served by flow_step_compensation.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.page') as page
    from input
)
select distinct s.run_id from duetime_flow_step as s indexed by duetime_flow_step_compensation
where s.kind = 'compensation' and s.state = 'registered' and s.run_id < (select before from g)
order by s.run_id desc limit (select page from g);

-- name: flow_infos
-- Runs as people see them.
with input(doc) as (select ?)
select j.id, j.task, j.queue, j.priority, j.state, j.args, j.key, j.run_at, j.created_at,
    j.finished_at, j.worker, j.claimed_at, j.error_code, j.error, j.facts, j.parked_reason,
    (select a.started_at from duetime_attempt as a
     where a.job_id = j.id and a.started_at is not null order by a.token limit 1),
    (select s.kind from duetime_flow_step as s where s.run_id = j.id and s.seq = 0),
    j.state in ('dead', 'cancelled', 'superseded', 'expired') and exists (
        select 1 from duetime_jobs as u
        where u.key = 'flow-undo:' || j.id
          and u.state in ('pending', 'retrying', 'parked', 'running')),
    case when json_extract((select doc from input), '$.doc.full') then
        (select a.result from duetime_attempt as a
         where a.job_id = j.id and a.outcome = 'completed' order by a.token desc limit 1) end
from duetime_jobs as j
where j.id in (select value from input cross join json_each(doc, '$.doc.ids'))
  and (select r.flow from duetime_job as r where r.id = j.id) = 1;

-- name: flow_open_steps
-- What runs wait for, in order, at most 100 of each: sleeps, signals, retries, jobs, and of a graph
-- the steps that run. Served by flow_step_waiting; of graphs by the primary key.
with input(doc) as (select ?), runs as materialized (
    select value as id from input cross join json_each(doc, '$.doc')
), o as (
    select s.* from runs as r
    cross join duetime_flow_step as s indexed by duetime_flow_step_waiting on s.run_id = r.id
    where s.state in ('waiting', 'retrying')
    union all
    select s.* from runs as r cross join duetime_flow_run as f on f.run_id = r.id
    cross join duetime_flow_step as s on s.run_id = r.id and s.seq between 1 and 1000
    where s.state = 'running'
), numbered as (
    select o.*, row_number() over (partition by o.run_id order by o.seq) as nth from o
)
select n.run_id, n.seq, n.kind, n.name, n.state, n.attempt, null, n.error_code, n.error, n.until,
    n.correlation, n.job_id, n.started_at, n.finished_at
from numbered as n where n.nth <= 100
order by n.run_id, n.seq;
