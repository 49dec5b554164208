-- Statements of flows. Every write of a run is fenced as a finish is: its claim must still hold the
-- job, and the attempt must not have ended.

-- name: flow_load
-- All that runs have recorded, in order, their signals that no wait has taken, and when they began.
-- Index: the primary keys, and flow_signal_run.
with runs as materialized (
    select value::bigint as id from json_array_elements_text(%s::json)
)
select s.run_id, s.seq, s.kind, s.name, s.state, s.attempt, s.output::text, s.error_code, s.error,
    s.until <= duetime.now(), s.job_id, s.place
from runs as r cross join lateral (
    select * from duetime.flow_step as s where s.run_id = r.id offset 0) as s
union all
select g.run_id, null, 'arrived', g.name, '', 0, g.data::text, null, null, null, g.id, null
from runs as r cross join lateral (
    select * from duetime.flow_signal as g where g.run_id = r.id and g.seq is null offset 0) as g
order by 1, 2, 11;

-- name: flow_record
-- Records steps of any number of runs. Returns those that were accepted: of the others the claim is
-- gone. To record the same again changes nothing.
with given as materialized (
    select * from json_to_recordset(%s::json) as g(
        run bigint, token bigint, seq integer, kind text, name text, state text, attempt smallint,
        place text, output json, code text, error text, wait bigint, correlation text, job bigint,
        started bigint, finished bigint, signal bigint)
), held as materialized (
    select c.token, c.claimed_at, c.job_ids from duetime.claim as c
    where c.token = any (array(select token from given)) order by c.token for key share
), fenced as materialized (
    select g.*, m.claimed_at
    from given as g
    join (select h.token, h.claimed_at, unnest(h.job_ids) as job_id from held as h) as m
        on m.token = g.token and m.job_id = g.run
    where not exists (select from duetime.attempt as a
                      where a.job_id = g.run and a.token = g.token)
), taken as (
    update duetime.flow_signal as s set seq = g.seq from fenced as g where s.id = g.signal
)
insert into duetime.flow_step as s (run_id, seq, kind, name, place, state, attempt, output,
    error_code, error, until, correlation, job_id, started_at, finished_at)
select g.run, g.seq, g.kind, g.name, g.place, g.state, g.attempt, g.output, g.code, g.error,
    duetime.now() + g.wait * interval '1 microsecond', g.correlation, g.job,
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

-- name: flow_lock
select duetime._lock_runs(array(select value::bigint from json_array_elements_text(%s::json)));

-- name: flow_suspend
-- Runs that wait give their job back, until the first of what they wait for; their attempts begin
-- anew, since they got on. Call `flow_lock` before, in a statement of its own. Returns for each what
-- became of it: `suspended`; `ready`, if something that it waits for is there, or it is to be
-- cancelled; or `lost`.
with given as materialized (
    select * from json_to_recordset(%s::json) as g(
        run bigint, token bigint, started bigint, finished bigint, waits json, deadline bigint)
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
                  where s.run_id = g.run and s.seq = 0 and s.kind = 'cancel' and s.state = 'waiting')
       or exists (select from duetime.flow_step as s
                  where s.run_id = g.run and s.finished_at is not null
                    and s.seq in (select value::integer from json_array_elements_text(g.waits)))
       or exists (select from duetime.flow_signal as f join duetime.flow_step as s
                      on s.run_id = f.run_id and s.name = f.name
                  where f.run_id = g.run and f.seq is null and s.kind = 'signal'
                    and s.state = 'waiting'))
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
                                  where s.run_id = a.job_id and s.state in ('waiting', 'retrying')),
                                 j.created_at + g.deadline * interval '1 microsecond'),
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
-- Runs that wait for this signal and correlation. Index: flow_step_signal.
select s.run_id from duetime.flow_step as s
cross join json_to_record(%s::json) as g(name text, correlation text)
where s.kind = 'signal' and s.state = 'waiting' and s.name = g.name and s.correlation = g.correlation
order by s.run_id;

-- name: flow_steps
-- What one run has recorded, for people to see.
select s.seq, s.kind, s.name, s.state, s.attempt, s.output::text, s.error_code, s.error, s.until,
    s.correlation, s.job_id, s.started_at, s.finished_at
from duetime.flow_step as s
where s.run_id = (%s::json ->> 'run')::bigint order by s.seq;
