-- Statements of flows. Every write of a run is fenced as a finish is: its claim must still hold the
-- job, and the attempt must not have ended.

-- name: flow_load
-- All that runs have recorded, in the order in which it ended, what has not ended last; and their
-- signals that no wait has taken. Index: the primary keys, and flow_signal_run.
with runs as materialized (
    select value::bigint as id from json_array_elements_text(%s::json)
)
select run_id, seq, kind, name, state, attempt, output, error_code, error, is_due, id, place
from (
    select s.run_id, s.seq, s.kind, s.name, s.state, s.attempt, s.output::text, s.error_code, s.error,
        s.until <= duetime.now() as is_due, s.job_id as id, s.place, s.finished_at
    from runs as r cross join lateral (
        select * from duetime.flow_step as s where s.run_id = r.id offset 0) as s
    union all
    select g.run_id, null, 'arrived', g.name, '', 0, g.data::text, null, null, null, g.id, null, null
    from runs as r cross join lateral (
        select * from duetime.flow_signal as g where g.run_id = r.id offset 0) as g
    where g.seq is null
) as loaded
order by run_id, finished_at nulls last, seq, id;

-- name: flow_began
-- When runs first ran since they last finished without success: since they were retried, if they were.
-- An attempt that was given back is not in the history; the steps that it recorded are there. Not those of
-- a graph: they are jobs, which may start after the run was cancelled, and it is suspended as it starts them.
-- Index: the primary keys.
select r.id, b.began_at
from (select value::bigint as id from json_array_elements_text(%s::json)) as r
cross join lateral (
    select coalesce(max(a.token), 0) as token, coalesce(max(a.finished_at), '-infinity') as at
    from (select * from duetime.attempt as a where a.job_id = r.id offset 0) as a
    where a.outcome in ('dead', 'cancelled', 'superseded', 'expired')
) as ended cross join lateral (
    select least(
        (select min(coalesce(a.started_at, a.claimed_at)) from duetime.attempt as a
         where a.job_id = r.id and a.token > ended.token),
        (select min(s.started_at) from duetime.flow_step as s
         where s.run_id = r.id and s.seq > 0 and s.started_at >= ended.at
           and not exists (select from duetime.flow_run as f where f.run_id = r.id))) as began_at
) as b;

-- name: flow_record
-- Records steps of any number of runs. Returns those that were accepted: of the others the claim is
-- gone. To record the same again changes nothing.
with given as materialized (
    select * from json_to_recordset(%s::json) as g(
        run bigint, token bigint, seq integer, kind text, name text, state text, attempt smallint,
        place text, output json, code text, error text, wait bigint, correlation text, job bigint,
        started bigint, finished bigint, signal bigint, holder bigint, batch integer)
), held as materialized (
    select c.token, c.claimed_at, c.job_ids from duetime.claim as c
    where c.token = any (array(select token from given)) order by c.token for key share
), fenced as materialized (
    select g.*, m.claimed_at
    from given as g
    join (select h.token, h.claimed_at, unnest(h.job_ids) as job_id from held as h) as m
        on m.token = g.token and m.job_id = coalesce(g.holder, g.run)
    where not exists (select from duetime.attempt as a
                      where a.job_id = coalesce(g.holder, g.run) and a.token = g.token)
), taken as (
    update duetime.flow_signal as s set seq = g.seq from fenced as g where s.id = g.signal
)
insert into duetime.flow_step as s (run_id, seq, kind, name, place, state, attempt, output,
    error_code, error, until, correlation, job_id, batch, started_at, finished_at)
select g.run, g.seq, g.kind, g.name, g.place, g.state, g.attempt, g.output, g.code, g.error,
    duetime.now() + g.wait * interval '1 microsecond', g.correlation, g.job, g.batch,
    g.claimed_at + g.started * interval '1 microsecond',
    g.claimed_at + g.finished * interval '1 microsecond'
from fenced as g
on conflict (run_id, seq) do update
set state = excluded.state, attempt = excluded.attempt, output = excluded.output,
    error_code = excluded.error_code, error = excluded.error,
    until = coalesce(excluded.until, s.until),
    job_id = coalesce(excluded.job_id, s.job_id), started_at = coalesce(s.started_at, excluded.started_at),
    finished_at = excluded.finished_at
returning s.run_id, s.seq;

-- name: flow_record_one
-- As `flow_record`, for one call that completed: what a run that is alone waits for at each step. Its
-- values are parameters: the server need not read a document.
insert into duetime.flow_step as s (run_id, seq, kind, name, place, state, attempt, output,
    started_at, finished_at)
select %(run)s::bigint, %(seq)s::integer, %(kind)s::text, %(name)s::text, %(place)s::text, 'completed',
    %(attempt)s::smallint, %(output)s::json,
    c.claimed_at + %(started)s::bigint * interval '1 microsecond',
    c.claimed_at + %(finished)s::bigint * interval '1 microsecond'
from duetime.claim as c
where c.token = %(token)s::bigint and %(run)s::bigint = any (c.job_ids)
  and not exists (select from duetime.attempt as a
                  where a.job_id = %(run)s::bigint and a.token = %(token)s::bigint)
for key share of c
on conflict (run_id, seq) do update
set state = excluded.state, attempt = excluded.attempt, output = excluded.output,
    error_code = null, error = null, started_at = coalesce(s.started_at, excluded.started_at),
    finished_at = excluded.finished_at
returning s.seq;

-- name: flow_holders
-- Which of these jobs do a step, and for which run. Index: flow_step_job.
select s.job_id, s.run_id from duetime.flow_step as s
where s.job_id = any (array(select value::bigint from json_array_elements_text(%s::json)))
  and s.finished_at is null;

-- name: flow_jobs_finished
-- Copies how jobs ended into the steps that they did. Returns the runs that can go on. Call `flow_try_lock`
-- before, in a statement of its own. Index: flow_step_job.
with finished as materialized (
    select s.run_id, s.seq, s.batch, a.attempt, a.outcome, a.result, a.error_code, a.error, a.finished_at
    from duetime.flow_step as s cross join lateral (
        select * from duetime.attempt as a where a.job_id = s.job_id
        order by a.token desc limit 1) as a
    where s.job_id = any (array(select value::bigint from json_array_elements_text(%s::json)))
      and s.finished_at is null
      and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
      and not exists (select from duetime.due as d where d.job_id = s.job_id)
      and not exists (select from duetime.parked as p where p.job_id = s.job_id)
), copied as (
    update duetime.flow_step as s
    set state = case when f.outcome = 'completed' then 'completed' else 'failed' end,
        output = f.result, finished_at = f.finished_at,
        attempt = coalesce(nullif(f.attempt, 0), s.attempt),
        error_code = case when f.outcome = 'completed' then null else coalesce(f.error_code, f.outcome) end,
        error = f.error
    from finished as f where s.run_id = f.run_id and s.seq = f.seq
    returning s.run_id, s.batch
)
select distinct c.run_id from copied as c
where c.batch is null
   or not exists (select from duetime.flow_step as s
                  where s.run_id = c.run_id and s.batch = c.batch and s.finished_at is null
                    and (s.run_id, s.seq) not in (select f.run_id, f.seq from finished as f));

-- name: flow_wake
select duetime._wake_runs(array(select value::bigint from json_array_elements_text(%s::json)));

-- name: flow_check
-- Whether a repair may have something to do. Indexes: flow_step_job, flow_step_compensation, flow_signal_untaken.
select 1 where %s::json is not null and (
    exists (select from duetime.flow_step as s where s.job_id is not null and s.finished_at is null)
    or exists (select from duetime.flow_step as s
               where s.kind = 'compensation' and s.state = 'registered')
    or exists (select from duetime.flow_signal as f
               where f.seq is null and f.sent_at > (select duetime.now()) - interval '1 hour'));

-- name: flow_job_steps
-- Steps whose job has ended without their run knowing, or whose run has ended without its job: some,
-- by the job's id. Compensations run after their run has ended. Index: flow_step_job.
with page as materialized (
    select s.job_id, s.run_id, s.seq from duetime.flow_step as s
    where s.job_id > (%s::json ->> 'after')::bigint and s.finished_at is null
    order by s.job_id limit 200
)
select p.job_id, j.id is not null, r.id is not null and p.seq > 0 from page as p
left join duetime.jobs as j on j.id = p.job_id
    and j.state in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
left join duetime.jobs as r on r.id = p.run_id
    and r.state in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
order by p.job_id;

-- name: flow_jobs_of
-- Jobs that runs have started, and that have not ended as far as the runs know; not compensations.
select s.job_id from duetime.flow_step as s
where s.run_id = any (array(select value::bigint from json_array_elements_text(%s::json)))
  and s.seq > 0 and s.job_id is not null and s.finished_at is null;

-- name: flow_uncompensated
-- Of runs that have failed, what a job that undoes them needs: unless there was one since. Index:
-- flow_step_compensation.
with runs as materialized (
    select distinct s.run_id from duetime.flow_step as s
    where s.kind = 'compensation' and s.state = 'registered'
      and s.run_id = any (array(select value::bigint from json_array_elements_text(%s::json)))
)
select j.id, j.task, j.args::text, j.queue, j.priority
from runs as r join duetime.jobs as j on j.id = r.run_id
where j.state in ('dead', 'cancelled', 'superseded', 'expired')
  and not exists (select from duetime.job as u
                  where u.key = 'flow-undo:' || j.id and u.created_at >= j.finished_at)
  -- Its code does not fit: it keeps its place.
  and not exists (select from duetime.flow_step as s
                  where s.run_id = j.id and s.seq = 0 and s.error_code = 'flow_changed');

-- name: flow_compensations
-- Runs with compensations, some at a time. Index: flow_step_compensation.
select distinct s.run_id from duetime.flow_step as s
where s.kind = 'compensation' and s.state = 'registered'
  and s.run_id > (%s::json ->> 'after')::bigint
order by s.run_id limit 200;

-- name: flow_overdue
-- Suspended runs whose signal has arrived. A sender whose transaction was older than the wait could not see
-- the wait; no transaction is open for an hour. Index: flow_signal_untaken.
with sent as materialized (
    select f.run_id, f.name from duetime.flow_signal as f
    where f.seq is null and f.sent_at > duetime.now() - interval '1 hour' and (%s::json) is not null
)
select distinct f.run_id from sent as f
join duetime.flow_step as s on s.run_id = f.run_id and s.name = f.name
join duetime.due as d on d.job_id = f.run_id
where s.kind = 'signal' and s.state = 'waiting' and d.run_at > duetime.now();

-- name: flow_forget
-- Forget calls of a run that has ended, and its failure.
delete from duetime.flow_step as s
using json_to_record(%s::json) as g(run bigint, calls json)
where s.run_id = g.run
  and (s.seq = 0 or s.seq = any (array(select value::integer from json_array_elements_text(g.calls))));

-- name: flow_lock
select duetime._lock_runs(array(select value::bigint from json_array_elements_text(%s::json)));

-- name: flow_lock_briefly
select duetime._lock_runs_briefly(array(select value::bigint from json_array_elements_text(%s::json)));

-- name: flow_try_lock
-- Returns the runs that are locked now. The others are being signalled, in a transaction that may
-- stay open for long: no other worker waits for it.
select duetime._try_lock_runs(array(select value::bigint from json_array_elements_text(%s::json)));

-- name: flow_suspend
-- Runs that wait give their job back, until the first of what they wait for; their attempts begin
-- anew, since they got on. A function may have abandoned calls that are still recorded as waiting:
-- only `waits` counts, or all of them if it is null. Call `flow_try_lock` before, in a statement of
-- its own. Returns for each what became of it: `suspended`; `ready`, if something that it waits for
-- is there, or it is to be cancelled; or `lost`.
with given as materialized (
    select * from json_to_recordset(%s::json) as g(
        run bigint, token bigint, started bigint, finished bigint, waits integer[],
        deadline timestamptz)
), held as materialized (
    select c.token, c.worker_id, c.claimed_at, c.job_ids, c.attempts, c.cancelled
    from duetime.claim as c
    where c.token = any (array(select token from given)) order by c.token for share
), mine as materialized (
    select h.token, h.worker_id, h.claimed_at, h.cancelled, u.job_id, u.attempt
    from held as h cross join lateral unnest(h.job_ids, h.attempts) as u(job_id, attempt)
), ready as materialized (
    select g.run from given as g join mine as m on m.token = g.token and m.job_id = g.run
    -- Else its answer was lost: it is suspended, and perhaps runs elsewhere.
    where not exists (select from duetime.attempt as a
                      where a.job_id = g.run and a.token = g.token)
      and (coalesce(g.run = any (m.cancelled), false)
       or exists (select from duetime.flow_step as s
                  where s.run_id = g.run and s.finished_at is not null
                    and s.seq = any (g.waits))
       -- `offset 0`: read for this run. Else the server may read all that wait for a signal, once.
       or exists (select from (select * from duetime.flow_signal as f
                               where f.run_id = g.run offset 0) as f
                  join (select * from duetime.flow_step as s
                        where s.run_id = g.run and s.state in ('waiting', 'retrying')
                          and (g.waits is null or s.seq = any (g.waits)) offset 0) as s
                      on s.name = f.name
                  where f.seq is null and s.kind = 'signal' and s.state = 'waiting'))
), accepted as (
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                 started_at, finished_at)
    select g.run, g.token, m.attempt, m.worker_id, 'snoozed', m.claimed_at,
           m.claimed_at + g.started * interval '1 microsecond',
           m.claimed_at + g.finished * interval '1 microsecond'
    from given as g join mine as m on m.token = g.token and m.job_id = g.run
    where g.run not in (select run from ready)
    on conflict (job_id, token) do nothing
    returning job_id, token
), again as materialized (
    select duetime._wait_again(
        array_agg(j.id),
        array_agg(coalesce(least((select min(s.until) from duetime.flow_step as s
                                  where s.run_id = a.job_id and s.state in ('waiting', 'retrying')
                                    -- Number 0: the function itself failed, and is tried again.
                                    and (g.waits is null or s.seq = 0 or s.seq = any (g.waits))),
                                 g.deadline),
                           '9000-01-01 00:00Z')),
        array_agg(0))
    from accepted as a join given as g on g.run = a.job_id and g.token = a.token
    cross join lateral (select * from duetime.job where job.id = a.job_id offset 0) as j
    having count(*) > 0
)
select g.run, case when a.job_id is not null then 'suspended'
                   when r.run is not null then 'ready' else 'lost' end
from (select count(*) from again) as waiting cross join given as g
left join accepted as a on a.job_id = g.run and a.token = g.token
left join ready as r on r.run = g.run;

-- name: flow_signal
-- See `_signal_flow`.
select duetime._signal_flow(g.run, g.name, g.data, g.key, g.by)
from json_to_record(%s::json) as g(run bigint, name text, data json, key text, by text);

-- name: flow_waiting
-- Runs that wait for this signal and correlation. One that has ended keeps the record of its wait.
-- Index: flow_step_signal.
with g as materialized (
    select * from json_to_record(%s::json) as g(name text, correlation text)
)
select s.run_id from duetime.flow_step as s join duetime.jobs as j on j.id = s.run_id
where s.kind = 'signal' and s.state = 'waiting' and s.name = (select name from g)
  and s.correlation = (select correlation from g)
  and j.state not in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
order by s.run_id;

-- name: flow_steps
-- What one run has recorded, for people to see.
select s.seq, s.kind, s.name, s.state, s.attempt, s.output::text, s.error_code, s.error, s.until,
    s.correlation, s.job_id, s.started_at, s.finished_at
from duetime.flow_step as s
where s.run_id = (%s::json ->> 'run')::bigint order by s.seq;
