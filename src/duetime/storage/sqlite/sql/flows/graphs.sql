-- Statements of graphs. One writer at a time: counts are exact, and of all steps that end at the same
-- time exactly one sees a count reach zero.

-- name: graph_runs
-- The graphs of runs and the arguments that the runs were started with.
with input(doc) as (select ?)
select j.id, f.shape, j.args
from json_each((select doc from input), '$.doc') as r
cross join duetime_job as j on j.id = r.value
left join duetime_flow_run as f on f.run_id = j.id;

-- name: graph_held
-- Whether the run's job is still held under this token.
with input(doc) as (select ?)
select c.claimed_at from duetime_claim as c
where c.job_id = json_extract((select doc from input), '$.doc.run')
  and c.token = json_extract((select doc from input), '$.doc.token');

-- name: graph_create
with input(doc) as (select ?)
insert or ignore into duetime_flow_run (run_id, shape)
select json_extract(doc, '$.doc.run'), json_extract(doc, '$.doc.shape') from input;

-- name: graph_add
-- Add rows, with what is known of them.
with input(doc) as (select ?)
insert or ignore into duetime_flow_step (run_id, seq, kind, name, state, pending, job_id, output,
    error_code, error, started_at, finished_at)
select json_extract(g.value, '$.run'), json_extract(g.value, '$.seq'), json_extract(g.value, '$.kind'), json_extract(g.value, '$.name'),
    json_extract(g.value, '$.state'), json_extract(g.value, '$.pending'), json_extract(g.value, '$.job'), json_extract(g.value, '$.output'),
    json_extract(g.value, '$.code'), json_extract(g.value, '$.error'), json_extract(g.value, '$.started_at'), json_extract(g.value, '$.finished_at')
from json_each((select doc from input), '$.doc') as g;

-- name: graph_rows
-- The rows of a run, without the items of its maps.
with input(doc) as (select ?)
select s.seq, s.kind, s.name, s.state, s.pending, s.until <= json_extract((select doc from input), '$.now'),
    s.job_id, s.error_code, s.error, s.finished_at
from duetime_flow_step as s
where s.run_id = json_extract((select doc from input), '$.doc.run')
  and s.seq <= json_extract((select doc from input), '$.doc.last')
order by s.seq;

-- name: graph_outputs
-- Outputs of ranges of rows.
with input(doc) as (select ?)
select s.run_id, s.seq, s.state, s.output, s.job_id
from json_each((select doc from input), '$.doc') as g
cross join duetime_flow_step as s
    on s.run_id = json_extract(g.value, '$.run') and s.seq between json_extract(g.value, '$.first') and json_extract(g.value, '$.last')
order by s.run_id, s.seq;

-- name: graph_items
-- How the items of maps stand: how many there are, have not ended, and failed, and how the first one did.
with input(doc) as (select ?), failed as (
    select json_extract(g.value, '$.first') as first, min(s.seq) as seq, s.name, s.error_code, s.error
    from json_each((select doc from input), '$.doc') as g
    cross join duetime_flow_step as s
        on s.run_id = json_extract(g.value, '$.run') and s.seq between json_extract(g.value, '$.first') and json_extract(g.value, '$.last')
    where s.state = 'failed' group by 1
)
select json_extract(g.value, '$.first'), count(s.seq), count(s.seq) filter (where s.finished_at is null),
    count(s.seq) filter (where s.state = 'failed'), f.name, f.error_code, f.error
from json_each((select doc from input), '$.doc') as g
left join duetime_flow_step as s
    on s.run_id = json_extract(g.value, '$.run') and s.seq between json_extract(g.value, '$.first') and json_extract(g.value, '$.last')
left join failed as f on f.first = json_extract(g.value, '$.first')
group by 1;

-- name: graph_write
-- Write what became of rows. What is not given of `job`, `pending`, `attempt` and `started_at` stays.
with input(doc) as (select ?)
update duetime_flow_step as s
set state = json_extract(g.value, '$.state'), output = json_extract(g.value, '$.output'), error_code = json_extract(g.value, '$.code'),
    error = json_extract(g.value, '$.error'), until = json_extract(g.value, '$.until'),
    job_id = coalesce(json_extract(g.value, '$.job'), s.job_id), pending = coalesce(json_extract(g.value, '$.pending'), s.pending),
    attempt = coalesce(json_extract(g.value, '$.attempt'), s.attempt),
    started_at = coalesce(json_extract(g.value, '$.started_at'), s.started_at), finished_at = json_extract(g.value, '$.finished_at')
from json_each((select doc from input), '$.doc') as g
where s.run_id = json_extract(g.value, '$.run') and s.seq = json_extract(g.value, '$.seq');

-- name: graph_release
-- Steps have ended: count down what waits for them. Of runs that stop, or whose job has ended, nothing is
-- counted: `retry` counts anew.
with input(doc) as (select ?), given as (
    select json_extract(g.value, '$.run') as run, json_extract(g.value, '$.seq') as seq,
        json_extract(g.value, '$.by') as by,
        exists (select 1 from duetime_flow_step as f
                where f.run_id = json_extract(g.value, '$.run') and f.seq = 0)
        or (not exists (select 1 from duetime_due as d where d.job_id = json_extract(g.value, '$.run'))
            and coalesce((select a.outcome from duetime_attempt as a
                          where a.job_id = json_extract(g.value, '$.run')
                          order by a.token desc limit 1), '')
                in ('completed', 'dead', 'cancelled', 'superseded', 'expired')) as stops
    from json_each((select doc from input), '$.doc') as g
)
update duetime_flow_step as s set pending = s.pending - g.by
from given as g where s.run_id = g.run and s.seq = g.seq and not g.stops;

-- name: graph_release_2
-- The rows that wait, with the steps that they still wait for.
with input(doc) as (select ?), given as (
    select json_extract(g.value, '$.run') as run, json_extract(g.value, '$.seq') as seq,
        json_extract(g.value, '$.by') as by,
        exists (select 1 from duetime_flow_step as f
                where f.run_id = json_extract(g.value, '$.run') and f.seq = 0)
        or (not exists (select 1 from duetime_due as d where d.job_id = json_extract(g.value, '$.run'))
            and coalesce((select a.outcome from duetime_attempt as a
                          where a.job_id = json_extract(g.value, '$.run')
                          order by a.token desc limit 1), '')
                in ('completed', 'dead', 'cancelled', 'superseded', 'expired')) as stops
    from json_each((select doc from input), '$.doc') as g
)
select s.run_id, s.seq, s.pending, s.state, g.stops
from given as g cross join duetime_flow_step as s on s.run_id = g.run and s.seq = g.seq;

-- name: graph_stop
-- Why the run stops. The first reason counts.
with input(doc) as (select ?)
insert or ignore into duetime_flow_step (run_id, seq, kind, name, state, output, error_code, error,
    started_at)
select json_extract(g.value, '$.run'), 0, json_extract(g.value, '$.kind'), json_extract(g.value, '$.name'), 'waiting', json_extract(g.value, '$.output'),
    json_extract(g.value, '$.code'), json_extract(g.value, '$.error'), json_extract((select doc from input), '$.now')
from json_each((select doc from input), '$.doc') as g;

-- name: graph_jobs
-- The jobs of rows that have not ended, and how they stand.
with input(doc) as (select ?)
select s.seq, s.job_id, coalesce(j.state, 'gone'), a.error_code, a.error, a.facts, a.result,
    a.finished_at, nullif(a.attempt, 0)
from duetime_flow_step as s
left join duetime_jobs as j on j.id = s.job_id
left join duetime_attempt as a on a.job_id = s.job_id
    and a.token = (select max(l.token) from duetime_attempt as l where l.job_id = s.job_id)
where s.run_id = json_extract((select doc from input), '$.doc.run') and s.job_id is not null
  and s.finished_at is null
order by s.seq;

-- name: graph_signals
-- Signals that the run has not taken, in the order in which they came.
with input(doc) as (select ?)
select f.id, f.name, f.data from duetime_flow_signal as f
where f.run_id = json_extract((select doc from input), '$.doc.run') and f.seq is null
order by f.id;

-- name: graph_take
with input(doc) as (select ?)
update duetime_flow_signal as f set seq = json_extract(g.value, '$.seq')
from json_each((select doc from input), '$.doc') as g where f.id = json_extract(g.value, '$.id');

-- name: graph_wake
-- Make suspended runs due now. What runs, or has ended, is left alone.
with input(doc) as (select ?)
update duetime_due set run_at = json_extract((select doc from input), '$.now')
where job_id in (select g.value from json_each((select doc from input), '$.doc') as g)
  and run_at > json_extract((select doc from input), '$.now');

-- name: graph_reset
-- Rows that are to run again stand as if they never had.
with input(doc) as (select ?)
update duetime_flow_step as s
set state = 'pending', output = null, error_code = null, error = null, until = null, job_id = null,
    started_at = null, finished_at = null, pending = json_extract(g.value, '$.pending'), attempt = 1
from json_each((select doc from input), '$.doc') as g
where s.run_id = json_extract(g.value, '$.run') and s.seq = json_extract(g.value, '$.seq');

-- name: graph_forget
-- Remove ranges of rows; with `keep_completed`, those of them that have not completed.
with input(doc) as (select ?)
delete from duetime_flow_step as s
where exists (
    select 1 from json_each((select doc from input), '$.doc') as g
    where s.run_id = json_extract(g.value, '$.run') and s.seq between json_extract(g.value, '$.first') and json_extract(g.value, '$.last')
      and not (coalesce(json_extract(g.value, '$.keep_completed'), 0) and s.state = 'completed'))
  and s.run_id in (select json_extract(g.value, '$.run') from json_each((select doc from input), '$.doc') as g);

-- name: graph_state
with input(doc) as (select ?)
select state from duetime_jobs where id = json_extract((select doc from input), '$.doc.run');
