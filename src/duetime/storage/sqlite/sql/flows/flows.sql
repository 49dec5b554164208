-- Statements of flows. Every write of a run is fenced as a finish is: its claim must still be there.

-- name: flow_load
-- All that runs have recorded, in the order in which it ended, what has not ended last; and their
-- signals that no wait has taken.
with input(doc) as (select ?)
select run_id, seq, kind, name, state, attempt, output, error_code, error, is_due, id, place
from (
    select s.run_id, s.seq, s.kind, s.name, s.state, s.attempt, s.output, s.error_code, s.error,
        s.until <= json_extract((select doc from input), '$.now') as is_due, s.job_id as id, s.place,
        s.finished_at
    from json_each((select doc from input), '$.doc') as r
    cross join duetime_flow_step as s on s.run_id = r.value
    union all
    select g.run_id, null, 'arrived', g.name, '', 0, g.data, null, null, null, g.id, null, null
    from json_each((select doc from input), '$.doc') as r
    cross join duetime_flow_signal as g on g.run_id = r.value and g.seq is null
)
order by run_id, finished_at nulls last, seq, id;

-- name: flow_began
-- When runs first ran since they last finished without success: since they were retried, if they were.
-- An attempt that was given back is not in the history; the steps that it recorded are there. Not those of
-- a graph: they are jobs, which may start after the run was cancelled, and it is suspended as it starts them.
with input(doc) as (select ?),
ended as materialized (
    select r.value as id, coalesce(max(a.token), 0) as token, coalesce(max(a.finished_at), 0) as at
    from json_each((select doc from input), '$.doc') as r
    left join duetime_attempt as a on a.job_id = r.value
        and a.outcome in ('dead', 'cancelled', 'superseded', 'expired')
    group by r.value
), starts as (
    select e.id, coalesce(a.started_at, a.claimed_at) as at
    from ended as e cross join duetime_attempt as a on a.job_id = e.id and a.token > e.token
    union all
    select e.id, s.started_at
    from ended as e cross join duetime_flow_step as s
        on s.run_id = e.id and s.seq > 0 and s.started_at >= e.at
    where not exists (select 1 from duetime_flow_run as f where f.run_id = e.id)
)
select id, min(at) from starts group by id;

-- name: flow_record
-- Takes the signals that waits of these runs got. Records follow in `flow_record_2`.
with input(doc) as (select ?)
update duetime_flow_signal as s set seq = json_extract(g.value, '$.seq')
from json_each((select doc from input), '$.doc') as g join duetime_claim as c
    on c.job_id = coalesce(json_extract(g.value, '$.holder'), json_extract(g.value, '$.run'))
    and c.token = json_extract(g.value, '$.token')
where s.id = json_extract(g.value, '$.signal');

-- name: flow_record_2
-- Records steps of any number of runs. Returns those that were accepted: of the others the claim is
-- gone. To record the same again changes nothing.
with input(doc) as (select ?)
insert into duetime_flow_step (run_id, seq, kind, name, place, state, attempt, output, error_code,
    error, until, correlation, job_id, batch, started_at, finished_at)
select json_extract(g.value, '$.run'), json_extract(g.value, '$.seq'), json_extract(g.value, '$.kind'),
    json_extract(g.value, '$.name'), json_extract(g.value, '$.place'), json_extract(g.value, '$.state'),
    json_extract(g.value, '$.attempt'), json_extract(g.value, '$.output_text'),
    json_extract(g.value, '$.code'), json_extract(g.value, '$.error'),
    json_extract((select doc from input), '$.now') + json_extract(g.value, '$.wait'), json_extract(g.value, '$.correlation'),
    json_extract(g.value, '$.job'), json_extract(g.value, '$.batch'), c.claimed_at + json_extract(g.value, '$.started'),
    c.claimed_at + json_extract(g.value, '$.finished')
from json_each((select doc from input), '$.doc') as g cross join duetime_claim as c
    on c.job_id = coalesce(json_extract(g.value, '$.holder'), json_extract(g.value, '$.run'))
    and c.token = json_extract(g.value, '$.token')
where true
on conflict (run_id, seq) do update
set state = excluded.state, attempt = excluded.attempt, output = excluded.output,
    error_code = excluded.error_code, error = excluded.error,
    until = coalesce(excluded.until, until), job_id = coalesce(excluded.job_id, job_id),
    started_at = coalesce(started_at, excluded.started_at), finished_at = excluded.finished_at
returning run_id, seq;

-- name: flow_holders
-- Which of these jobs do a step, and for which run.
with input(doc) as (select ?)
select s.job_id, s.run_id from json_each((select doc from input), '$.doc') as g
cross join duetime_flow_step as s on s.job_id = g.value and s.finished_at is null;

-- name: flow_jobs_finished
-- Copies how jobs ended into the steps that they did.
with input(doc) as (select ?),
finished as materialized (
    select s.run_id, s.seq, a.attempt, a.outcome, a.result, a.error_code, a.error, a.finished_at
    from json_each((select doc from input), '$.doc') as g
    cross join duetime_flow_step as s on s.job_id = g.value and s.finished_at is null
    cross join duetime_attempt as a on a.job_id = s.job_id
    where a.token = (select max(token) from duetime_attempt where job_id = s.job_id)
      and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
      and not exists (select 1 from duetime_due as d where d.job_id = s.job_id)
      and not exists (select 1 from duetime_parked as p where p.job_id = s.job_id)
)
update duetime_flow_step as s
set state = iif(f.outcome = 'completed', 'completed', 'failed'), output = f.result,
    finished_at = f.finished_at, attempt = coalesce(nullif(f.attempt, 0), s.attempt),
    error_code = iif(f.outcome = 'completed', null, coalesce(f.error_code, f.outcome)),
    error = f.error
from finished as f where s.run_id = f.run_id and s.seq = f.seq;

-- name: flow_jobs_finished_2
-- Returns the runs that can go on.
with input(doc) as (select ?)
select distinct s.run_id from json_each((select doc from input), '$.doc') as g
cross join duetime_job as j on j.id = g.value
cross join duetime_flow_step as s
    on s.run_id = cast(substr(j.key, 6, instr(substr(j.key, 6), ':') - 1) as integer)
    and s.job_id = j.id
where j.key like 'flow:%' and s.finished_at is not null
  and (s.batch is null
       or not exists (select 1 from duetime_flow_step as o
                      where o.run_id = s.run_id and o.batch = s.batch and o.finished_at is null));

-- name: flow_wake
with input(doc) as (select ?)
update duetime_due set run_at = json_extract((select doc from input), '$.now')
where job_id in (select value from json_each((select doc from input), '$.doc'))
  and run_at > json_extract((select doc from input), '$.now');

-- name: flow_check
-- Whether a repair may have something to do.
with input(doc) as (select ?)
select 1 from input as i
where exists (select 1 from duetime_flow_step as s indexed by duetime_flow_step_job
              where s.job_id is not null and s.finished_at is null)
   or exists (select 1 from duetime_flow_step as s indexed by duetime_flow_step_compensation
              where s.kind = 'compensation' and s.state = 'registered')
   or exists (select 1 from duetime_flow_signal as f indexed by duetime_flow_signal_untaken
              where f.seq is null and f.sent_at > json_extract(i.doc, '$.now') - 3600000000);

-- name: flow_job_steps
-- Steps whose job has ended without their run knowing, or whose run has ended without its job: some,
-- by the job's id. Compensations run after their run has ended.
with input(doc) as (select ?),
page as (
    select s.job_id, s.run_id, s.seq from duetime_flow_step as s
    where s.job_id > json_extract((select doc from input), '$.doc.after') and s.finished_at is null
    order by s.job_id limit 200
)
select p.job_id, j.id is not null, r.id is not null and p.seq > 0 from page as p
left join duetime_jobs as j on j.id = p.job_id
    and j.state in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
left join duetime_jobs as r on r.id = p.run_id
    and r.state in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
order by p.job_id;

-- name: flow_jobs_of
-- Jobs that runs have started, and that have not ended as far as the runs know; not compensations.
with input(doc) as (select ?)
select s.job_id from json_each((select doc from input), '$.doc') as g
cross join duetime_flow_step as s on s.run_id = g.value
where s.seq > 0 and s.job_id is not null and s.finished_at is null;

-- name: flow_uncompensated
-- Of runs that have failed, what a job that undoes them needs: unless there was one since.
with input(doc) as (select ?)
select j.id, j.task, j.args, j.queue, j.priority
from json_each((select doc from input), '$.doc') as g cross join duetime_jobs as j on j.id = g.value
where j.state in ('dead', 'cancelled', 'superseded', 'expired')
  and exists (select 1 from duetime_flow_step as s
              where s.run_id = j.id and s.kind = 'compensation' and s.state = 'registered')
  and not exists (select 1 from duetime_job as u
                  where u.key = 'flow-undo:' || j.id and u.created_at >= j.finished_at)
  -- Its code does not fit: it keeps its place.
  and not exists (select 1 from duetime_flow_step as s
                  where s.run_id = j.id and s.seq = 0 and s.error_code = 'flow_changed');

-- name: flow_compensations
-- Runs with compensations, some at a time.
with input(doc) as (select ?)
select distinct s.run_id from duetime_flow_step as s
where s.kind = 'compensation' and s.state = 'registered'
  and s.run_id > json_extract((select doc from input), '$.doc.after')
order by s.run_id limit 200;

-- name: flow_overdue
-- Suspended runs whose signal has arrived: with one writer at a time there should be none.
with input(doc) as (select ?)
select distinct f.run_id from duetime_flow_signal as f indexed by duetime_flow_signal_untaken
cross join duetime_flow_step as s on s.run_id = f.run_id and s.name = f.name
cross join duetime_due as d on d.job_id = f.run_id
where f.seq is null and f.sent_at > json_extract((select doc from input), '$.now') - 3600000000
  and s.kind = 'signal' and s.state = 'waiting'
  and d.run_at > json_extract((select doc from input), '$.now');

-- name: flow_forget
-- Forget calls of a run that has ended, and its failure.
with input(doc) as (select ?)
delete from duetime_flow_step
where run_id = json_extract((select doc from input), '$.doc.run')
  and (seq = 0 or seq in (select value from json_each((select doc from input), '$.doc.calls')));

-- name: flow_lock
-- One writer at a time is lock enough.
with input(doc) as (select ?)
select 1 where (select doc from input) is null;

-- name: flow_lock_briefly
with input(doc) as (select ?)
select 1 where (select doc from input) is null;

-- name: flow_try_lock
with input(doc) as (select ?)
select value from json_each((select doc from input), '$.doc');

-- name: flow_suspend
-- Runs that wait give their job back, until the first of what they wait for; their attempts begin
-- anew, since they got on. Unless something that they wait for is there, or they are to be cancelled.
-- A function may have abandoned calls that are still recorded as waiting: only `waits` counts, or all
-- of them if it is null.
with input(doc) as (select ?)
insert or ignore into duetime_attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                       started_at, finished_at)
select c.job_id, c.token, c.attempt, c.worker_id, 'snoozed', c.claimed_at,
    c.claimed_at + json_extract(g.value, '$.started'), c.claimed_at + json_extract(g.value, '$.finished')
from json_each((select doc from input), '$.doc') as g cross join duetime_claim as c
    on c.job_id = json_extract(g.value, '$.run') and c.token = json_extract(g.value, '$.token')
where c.cancelled is null
  and not exists (select 1 from duetime_flow_step as s
                  where s.run_id = c.job_id and s.finished_at is not null
                    and s.seq in (select w.value from json_each(g.value, '$.waits') as w))
  and not exists (select 1 from duetime_flow_signal as f join duetime_flow_step as s
                      on s.run_id = f.run_id and s.name = f.name
                      and (json_type(g.value, '$.waits') = 'null'
                           or s.seq in (select w.value from json_each(g.value, '$.waits') as w))
                  where f.run_id = c.job_id and f.seq is null and s.kind = 'signal'
                    and s.state = 'waiting');

-- name: flow_suspend_2
with input(doc) as (select ?)
insert into duetime_due (job_id, queue, priority, run_at, attempt, partition)
select j.id, j.queue, j.priority,
    -- Number 0: the function itself failed, and is tried again.
    min(coalesce((select min(s.until) from duetime_flow_step as s
                  where s.run_id = j.id and s.state in ('waiting', 'retrying')
                    and (s.seq = 0 or json_type(g.value, '$.waits') = 'null')),
                 221845392000000000),
        coalesce((select min(s.until) from json_each(g.value, '$.waits') as w
                  cross join duetime_flow_step as s on s.run_id = j.id and s.seq = w.value
                  where s.state in ('waiting', 'retrying')),
                 221845392000000000),
        coalesce(json_extract(g.value, '$.deadline'), 221845392000000000)),
    0, j.partition
from json_each((select doc from input), '$.doc') as g
cross join duetime_claim as c
    on c.job_id = json_extract(g.value, '$.run') and c.token = json_extract(g.value, '$.token')
cross join duetime_attempt as a on a.job_id = c.job_id and a.token = c.token
cross join duetime_job as j on j.id = c.job_id;

-- name: flow_suspend_3
-- Says what became of each: the claim is there, and its attempt has ended, or not.
with input(doc) as (select ?)
select json_extract(g.value, '$.run'),
    case when c.job_id is null then 'lost' when a.job_id is null then 'ready' else 'suspended' end
from json_each((select doc from input), '$.doc') as g
left join duetime_claim as c
    on c.job_id = json_extract(g.value, '$.run') and c.token = json_extract(g.value, '$.token')
left join duetime_attempt as a on a.job_id = c.job_id and a.token = c.token;

-- name: flow_release
-- Those that were suspended leave their claim.
with input(doc) as (select ?)
delete from duetime_claim as c
where c.job_id in (select json_extract(g.value, '$.run') from json_each((select doc from input), '$.doc') as g)
  and exists (select 1 from duetime_attempt as a where a.job_id = c.job_id and a.token = c.token);

-- name: flow_state
-- The state of a run, if it is one, and whether it has a signal of this name and key.
with input(doc) as (select ?)
select coalesce((select s.state from duetime_jobs as s join duetime_job as j on j.id = s.id
                 where s.id = json_extract((select doc from input), '$.doc.run') and j.flow), ''),
    exists (select 1 from duetime_flow_signal
            where run_id = json_extract((select doc from input), '$.doc.run')
              and name = json_extract((select doc from input), '$.doc.name')
              and key = json_extract((select doc from input), '$.doc.key'));

-- name: flow_signal
-- None comes back if there is one of this name and key.
with input(doc) as (select ?)
insert into duetime_flow_signal (run_id, name, key, data, sent_at, sent_by)
select json_extract((select doc from input), '$.doc.run'), json_extract((select doc from input), '$.doc.name'), json_extract((select doc from input), '$.doc.key'),
    json_extract((select doc from input), '$.doc.data_text'), json_extract((select doc from input), '$.now'), json_extract((select doc from input), '$.doc.by')
where true
on conflict (run_id, name, key) where key is not null do nothing
returning id;

-- name: flow_wake_waiting
-- Runs that wait for it are due now.
with input(doc) as (select ?)
update duetime_due set run_at = json_extract((select doc from input), '$.now')
where job_id = json_extract((select doc from input), '$.doc.run') and run_at > json_extract((select doc from input), '$.now')
  and exists (select 1 from duetime_flow_step as s
              where s.run_id = duetime_due.job_id and s.kind = 'signal' and s.state = 'waiting'
                and s.name = json_extract((select doc from input), '$.doc.name'));

-- name: flow_waiting
-- Runs that wait for this signal and correlation. One that has ended keeps the record of its wait.
-- Index: flow_step_signal.
with input(doc) as (select ?)
select s.run_id from duetime_flow_step as s cross join duetime_jobs as j on j.id = s.run_id
where s.kind = 'signal' and s.state = 'waiting' and s.name = json_extract((select doc from input), '$.doc.name')
  and s.correlation = json_extract((select doc from input), '$.doc.correlation')
  and j.state not in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
order by s.run_id;

-- name: flow_steps
-- What one run has recorded, for people to see.
with input(doc) as (select ?)
select s.seq, s.kind, s.name, s.state, s.attempt, s.output, s.error_code, s.error, s.until,
    s.correlation, s.job_id, s.started_at, s.finished_at
from duetime_flow_step as s where s.run_id = json_extract((select doc from input), '$.doc.run') order by s.seq;
