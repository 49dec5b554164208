-- Statements of graphs. A writer of rows of a run has locked the run before (`flow_lock`), so that
-- counts are exact: of all steps that end at the same time exactly one sees a count reach zero.

-- name: graph_runs
-- The graphs of runs and the arguments that the runs were started with. Index: the primary keys.
select r.id, f.shape::text, j.args::text
from (select value::bigint as id from json_array_elements_text(%s::json)) as r
join duetime.job as j on j.id = r.id
left join duetime.flow_run as f on f.run_id = r.id;

-- name: graph_held
-- Whether the run's job is still held under this token.
select c.claimed_at from duetime.claim as c
cross join json_to_record(%s::json) as g(run bigint, token bigint)
where c.token = g.token and g.run = any (c.job_ids)
  and not exists (select from duetime.attempt as a where a.job_id = g.run and a.token = g.token)
for key share of c;

-- name: graph_create
insert into duetime.flow_run (run_id, shape)
select g.run, g.shape from json_to_record(%s::json) as g(run bigint, shape json)
on conflict (run_id) do nothing;

-- name: graph_add
-- Add rows, with what is known of them.
insert into duetime.flow_step (run_id, seq, kind, name, state, pending, job_id, output, error_code,
    error, started_at, finished_at)
select g.run, g.seq, g.kind, g.name, g.state, g.pending, g.job, g.output, g.code, g.error,
    g.started_at, g.finished_at
from json_to_recordset(%s::json) as g(
    run bigint, seq integer, kind text, name text, state text, pending integer, job bigint,
    output json, code text, error text, started_at timestamptz, finished_at timestamptz)
on conflict (run_id, seq) do nothing;

-- name: graph_rows
-- The rows of a run, without the items of its maps. Index: the primary key.
select s.seq, s.kind, s.name, s.state, s.pending, s.until <= duetime.now(), s.job_id,
    s.error_code, s.error, s.finished_at
from json_to_record(%s::json) as g(run bigint, last integer)
join duetime.flow_step as s on s.run_id = g.run and s.seq <= g.last
order by s.seq;

-- name: graph_outputs
-- Outputs of ranges of rows. Index: the primary key.
select s.run_id, s.seq, s.state, s.output::text, s.job_id
from json_to_recordset(%s::json) as g(run bigint, first integer, last integer)
cross join lateral (
    select * from duetime.flow_step as s
    where s.run_id = g.run and s.seq between g.first and g.last offset 0) as s
order by s.run_id, s.seq;

-- name: graph_items
-- How the items of maps stand: how many there are, have not ended, and failed, and how the first one did.
select g.first, count(s.seq), count(s.seq) filter (where s.finished_at is null),
    count(s.seq) filter (where s.state = 'failed'),
    (array_agg(s.name order by s.seq) filter (where s.state = 'failed'))[1],
    (array_agg(s.error_code order by s.seq) filter (where s.state = 'failed'))[1],
    (array_agg(s.error order by s.seq) filter (where s.state = 'failed'))[1]
from json_to_recordset(%s::json) as g(run bigint, first integer, last integer)
left join lateral (
    select * from duetime.flow_step as s
    where s.run_id = g.run and s.seq between g.first and g.last offset 0) as s on true
group by g.first;

-- name: complete_steps
-- As `complete`, for steps of runs that no other transaction has locked: these are locked from now on. `complete`
-- sees what was committed before the lock was taken, since its statements have snapshots of their own.
with given as materialized (
    select e.item, e.place, (e.item ->> 'run')::bigint as run
    from json_array_elements(%s::json) with ordinality as e(item, place)
), locked as materialized (
    select duetime._try_lock_runs(array(select distinct g.run from given as g)) as run
)
select s.place, duetime.complete(s.item -> 'finish')
from (select g.place, g.item from given as g join locked as l on l.run = g.run
      order by g.place offset 0) as s;

-- name: graph_write_and_release
-- Write what became of rows. What is not given of `job`, `pending`, `attempt` and `started_at` stays.
-- Then count down what waits for steps that have ended. Returns the rows that wait, with the steps that
-- they still wait for. Of runs that stop, or whose job has ended, nothing is counted: `retry` counts
-- anew. A run that waits is in `due`, so it seldom takes more than a look there. No row is both written
-- and counted down: a step ends after all that it waits for.
with given as materialized (
    select %s::json as doc
), written as (
    update duetime.flow_step as s
    set state = g.state, output = g.output, error_code = g.code, error = g.error, until = g.until,
        job_id = coalesce(g.job, s.job_id), pending = coalesce(g.pending, s.pending),
        attempt = coalesce(g.attempt, s.attempt), started_at = coalesce(g.started_at, s.started_at),
        finished_at = g.finished_at
    from json_to_recordset((select doc -> 'changes' from given)) as g(
        run bigint, seq integer, state text, output json, code text, error text, until timestamptz,
        job bigint, pending integer, attempt smallint, started_at timestamptz,
        finished_at timestamptz)
    where s.run_id = g.run and s.seq = g.seq
)
update duetime.flow_step as s
set pending = s.pending - case when o.stops then 0 else g.by end
from json_to_recordset((select doc -> 'counts' from given)) as g(run bigint, seq integer, by integer)
cross join lateral (
    select exists (select from duetime.flow_step as f where f.run_id = g.run and f.seq = 0)
        or (not exists (select from duetime.due as d where d.job_id = g.run)
            and (select a.outcome from duetime.attempt as a where a.job_id = g.run
                 order by a.token desc limit 1)
                in ('completed', 'dead', 'cancelled', 'superseded', 'expired')) as stops
    offset 0) as o
where s.run_id = g.run and s.seq = g.seq
returning s.run_id, s.seq, s.pending, s.state, coalesce(o.stops, false);

-- name: graph_stop
-- Why the run stops. The first reason counts.
insert into duetime.flow_step (run_id, seq, kind, name, state, output, error_code, error, started_at)
select g.run, 0, g.kind, g.name, 'waiting', g.output, g.code, g.error, duetime.now()
from json_to_recordset(%s::json) as g(
    run bigint, kind text, name text, output json, code text, error text)
on conflict (run_id, seq) do nothing;

-- name: graph_jobs
-- The jobs of rows that have not ended, and how they stand.
select s.seq, s.job_id, coalesce(j.state, 'gone'), a.error_code, a.error, a.facts::text, a.result::text,
    a.finished_at, nullif(a.attempt, 0)
from duetime.flow_step as s
left join duetime.jobs as j on j.id = s.job_id
left join lateral (
    select * from duetime.attempt as a where a.job_id = s.job_id order by a.token desc limit 1
) as a on true
where s.run_id = (%s::json ->> 'run')::bigint and s.job_id is not null and s.finished_at is null
order by s.seq;

-- name: graph_signals
-- Signals that the run has not taken, in the order in which they came. Index: flow_signal_run.
select f.id, f.name, f.data::text from (
    select * from duetime.flow_signal as f where f.run_id = (%s::json ->> 'run')::bigint offset 0) as f
where f.seq is null
order by f.id;

-- name: graph_take
update duetime.flow_signal as f set seq = g.seq
from json_to_recordset(%s::json) as g(id bigint, seq integer) where f.id = g.id;

-- name: graph_wake
select duetime._wake_runs(array(select value::bigint from json_array_elements_text(%s::json)));

-- name: graph_reset
-- Rows that are to run again stand as if they never had.
update duetime.flow_step as s
set state = 'pending', output = null, error_code = null, error = null, until = null, job_id = null,
    started_at = null, finished_at = null, pending = g.pending, attempt = 1
from json_to_recordset(%s::json) as g(run bigint, seq integer, pending integer)
where s.run_id = g.run and s.seq = g.seq;

-- name: graph_forget
-- Remove ranges of rows; with `keep_completed`, those of them that have not completed.
delete from duetime.flow_step as s
using json_to_recordset(%s::json) as g(
    run bigint, first integer, last integer, keep_completed boolean)
where s.run_id = g.run and s.seq between g.first and g.last
  and not (coalesce(g.keep_completed, false) and s.state = 'completed');

-- name: graph_state
select state from duetime.jobs where id = (%s::json ->> 'run')::bigint;

-- name: graph_end_steps
select * from duetime._end_steps(%s::json);

-- name: graph_begin_run
select * from duetime._begin_run(%s::json);

-- name: graph_end_run
select seq, output from duetime._end_run(%s::json);
