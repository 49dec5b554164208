-- Statements of schedules. Each takes one JSON document, {"now": …, "doc": …}, whose second part
-- is the same as on PostgreSQL, and gives the same columns. What PostgreSQL does in one statement
-- goes on here in `…_2`, `…_3`; the rows are those of the last.

-- name: schedule_gate
-- The look before runs start: whether each is clear to run without further ado. Reads only.
-- It is clear if it is on time and leaves its places to the open runs before it, and to those that
-- have begun. A run that ended before was requeued by a person; one that only the ledger has ended
-- was skipped by a worker that died right after. `unbegun`: it has not begun, even if its job was
-- claimed before. `start_by`: until then its start is on time.
with input(doc) as (select ?),
looked as (
    select o.*, s.plain, s.paused_at, s.grace, s.at_once, json_extract(i.doc, '$.now') as now,
        o.finished_at is not null and not exists (
            select 1 from duetime_attempt as a
            where a.job_id = o.job_id
              and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')) as over
    from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_schedule_tick as o on o.job_id = e.value
    cross join duetime_schedule as s on s.id = o.schedule_id
)
select o.job_id, o.schedule_id, o.tick,
    not o.over and coalesce(
        o.runs_as = 'triggered' or o.finished_at is not null or o.begun_at is not null
        or o.plain and o.paused_at is null and o.status = 'armed' and o.runs_as = 'fired'
           and o.now - o.run_at <= o.grace
           and (o.at_once is null
                or (select count(*) from duetime_open_run as r
                    where r.schedule_id = o.schedule_id and r.tick <> o.tick
                      and (r.begun or r.runs_as <> 'triggered'
                           and (r.run_at, r.tick) < (o.run_at, o.tick))) < o.at_once),
        false) as clear,
    o.over or o.finished_at is null and o.begun_at is null
        and (o.status = 'waiting' or o.runs_as in ('caught_up', 'backfilled')) as unbegun,
    o.status,
    iif(o.runs_as = 'fired' and o.begun_at is null and o.finished_at is null,
        o.run_at + o.grace, null) as start_by
from looked as o;

-- name: schedule_lock
with input(doc) as (select ?)
select s.id, s.name, s.kind, s.target, s.args, s.queue, s.priority, s.max_attempts, s.timeout,
    s.timetable, s.policy, s.planned_until, s.next_run_at, s.last_run_at, s.last_enqueued_at,
    s.paused_at, s.paused_by, s.pause_reason, s.paused_until, s.failures, s.broken, s.declared,
    s.revision, s.created_at, s.updated_at, s.plain, s.owner
from duetime_schedule as s
where s.id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e
               union
               select n.id from input as i cross join json_each(i.doc, '$.doc.names') as e
               cross join duetime_schedule as n on n.name = e.value)
order by s.id;

-- name: schedule_try_lock
-- One transaction writes at a time, so none is locked.
with input(doc) as (select ?)
select 1 from input where false;

-- name: schedule_find
-- By the unique index of `name`; all of them if `names` is null.
with input(doc) as (select ?), chosen(id) as (
    select s.id from input as i cross join duetime_schedule as s
    where json_extract(i.doc, '$.doc.names') is null
    union
    select s.id from input as i cross join json_each(i.doc, '$.doc.names') as e
    cross join duetime_schedule as s on s.name = e.value
)
select s.id, s.name, s.kind, s.target, s.args, s.queue, s.priority, s.max_attempts, s.timeout,
    s.timetable, s.policy, s.planned_until, s.next_run_at, s.last_run_at, s.last_enqueued_at,
    s.paused_at, s.paused_by, s.pause_reason, s.paused_until, s.failures, s.broken, s.declared,
    s.revision, s.created_at, s.updated_at, s.plain, s.owner
from chosen as c cross join duetime_schedule as s on s.id = c.id
order by s.name;

-- name: schedule_list
-- By name, those after one of them.
with input(doc) as (select ?)
select s.id, s.name, s.kind, s.target, s.args, s.queue, s.priority, s.max_attempts, s.timeout,
    s.timetable, s.policy, s.planned_until, s.next_run_at, s.last_run_at, s.last_enqueued_at,
    s.paused_at, s.paused_by, s.pause_reason, s.paused_until, s.failures, s.broken, s.declared,
    s.revision, s.created_at, s.updated_at, s.plain, s.owner
from duetime_schedule as s
where s.name > (select json_extract(doc, '$.doc.after') from input)
order by s.name limit (select json_extract(doc, '$.doc.limit') from input);

-- name: schedule_check
-- Whether `schedule_due` has something, and, if that is asked for, whether `schedule_unrecorded` may
-- have.
with input(doc) as (select ?)
select exists (
        select 1 from duetime_schedule as s indexed by duetime_schedule_next
        where s.paused_at is null and s.broken is null
          and s.next_run_at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.patience'))
    or exists (
        select 1 from duetime_schedule as s indexed by duetime_schedule_paused
        where s.paused_until is not null and s.paused_until <= json_extract(i.doc, '$.now')),
    json_extract(i.doc, '$.doc.unrecorded') and exists (
        select 1 from duetime_schedule_tick as o indexed by duetime_schedule_tick_open
        where o.job_id is not null and o.finished_at is null
          and o.run_at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.patience'))
from input as i;

-- name: schedule_due
with input(doc) as (select ?)
select id from (
    select s.id from duetime_schedule as s indexed by duetime_schedule_next
    where s.paused_at is null and s.broken is null
      and s.next_run_at <= (select json_extract(doc, '$.now') - json_extract(doc, '$.doc.patience')
                            from input)
    order by s.next_run_at limit 500)
union
select s.id from duetime_schedule as s indexed by duetime_schedule_paused
where s.paused_until is not null
  and s.paused_until <= (select json_extract(doc, '$.now') from input);

-- name: schedule_next
-- When `schedule_due` has something next.
with input(doc) as (select ?)
select min(at) from (
    select * from (
        select s.next_run_at + json_extract(i.doc, '$.doc.patience') as at
        from input as i cross join duetime_schedule as s indexed by duetime_schedule_next
        where s.paused_at is null and s.broken is null and s.next_run_at is not null
        order by s.next_run_at limit 1)
    union all
    select * from (
        select s.paused_until from duetime_schedule as s indexed by duetime_schedule_paused
        where s.paused_until is not null order by s.paused_until limit 1));

-- name: schedule_open
-- The open runs of schedules; and, with false in the column before the last, every row of the ledger beyond
-- `after`: what has run before its time, or was backfilled.
with input(doc) as (select ?)
select r.schedule_id, r.tick, r.run_at, r.status, r.runs_as, r.job_id, r.begun, true, r.begun_at
from duetime_open_run as r
where r.schedule_id in (
    select json_extract(e.value, '$.id') from input as i cross join json_each(i.doc, '$.doc') as e)
union all
select o.schedule_id, o.tick, o.run_at, o.status, o.runs_as, o.job_id, false, false, null
from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_schedule_tick as o
    on o.schedule_id = json_extract(e.value, '$.id') and o.tick > json_extract(e.value, '$.after')
order by 2;

-- name: schedule_paced
-- The last missed run that was caught up, or will be, before a tick. Not far back: they come in
-- their order.
with input(doc) as (select ?)
select g.schedule_id, (
    select max(p.run_at) from (
        select o.run_at, o.status, o.runs_as from duetime_schedule_tick as o
        where o.schedule_id = g.schedule_id and o.tick < g.before
        order by o.tick desc limit 100) as p
    where p.status = 'caught_up' or p.runs_as = 'caught_up' and p.status in ('armed', 'waiting'))
from (select json_extract(e.value, '$.schedule_id') as schedule_id,
          coalesce(json_extract(e.value, '$.before'), 9223372036854775807) as before
      from input as i cross join json_each(i.doc, '$.doc') as e) as g;

-- name: schedule_write
-- New rows of the ledger, their jobs, and the schedules' next step. A tick that the ledger has is
-- left as it is. A run's key is taken like any job's: if a schedule in memory has enqueued that
-- tick, its job is the run.
with input(doc) as (select ?)
insert into duetime_job_key (task, key, job_id, hold)
select s.target, json_extract(e.value, '$.key'),
    (select value from duetime_counter where name = 'job') + e.key + 1, 3600000000
from input as i cross join json_each(i.doc, '$.doc.ticks') as e
cross join duetime_schedule as s on s.id = json_extract(e.value, '$.schedule_id')
where json_extract(e.value, '$.has_job') and not exists (
    select 1 from duetime_schedule_tick as o
    where o.schedule_id = s.id and o.tick = json_extract(e.value, '$.tick')
      and not (json_extract(e.value, '$.runs_as') = 'backfilled'
               and (o.status in ('skipped', 'coalesced')
                    or json_extract(e.value, '$.again') and o.finished_at is not null
                       and o.succeeded is not true)))
on conflict (task, key) do update
set (job_id, hold, held_until) = (excluded.job_id, excluded.hold, null)
where held_until <= (select json_extract(doc, '$.now') from input);

-- name: schedule_write_2
with input(doc) as (select ?)
insert into duetime_schedule_tick (schedule_id, tick, run_at, status, runs_as, reason, job_id,
                                enqueued_at, finished_at)
select json_extract(e.value, '$.schedule_id'), json_extract(e.value, '$.tick'),
    json_extract(e.value, '$.run_at'), json_extract(e.value, '$.status'),
    json_extract(e.value, '$.runs_as'), json_extract(e.value, '$.reason'),
    iif(json_extract(e.value, '$.has_job'),
        (select k.job_id from duetime_job_key as k
         where k.task = s.target and k.key = json_extract(e.value, '$.key')), null),
    iif(json_extract(e.value, '$.has_job'), json_extract(i.doc, '$.now'), null),
    iif(json_extract(e.value, '$.has_job'), null, json_extract(i.doc, '$.now'))
from input as i cross join json_each(i.doc, '$.doc.ticks') as e
cross join duetime_schedule as s on s.id = json_extract(e.value, '$.schedule_id')
-- One that failed and was requeued holds its key, and is left alone.
where not json_extract(e.value, '$.again')
   or (select k.job_id from duetime_job_key as k
       where k.task = s.target and k.key = json_extract(e.value, '$.key'))
      > (select value from duetime_counter where name = 'job')
on conflict (schedule_id, tick) do update
set (run_at, status, runs_as, reason, job_id, enqueued_at, finished_at)
    = (excluded.run_at, excluded.status, excluded.runs_as, excluded.reason, excluded.job_id,
       excluded.enqueued_at, excluded.finished_at),
    (begun_at, worker, started_at, succeeded, error) = (null, null, null, null, null)
where excluded.runs_as = 'backfilled'
  and (status in ('skipped', 'coalesced')
       or excluded.job_id > (select value from duetime_counter where name = 'job'));

-- name: schedule_write_3
with input(doc) as (select ?)
insert into duetime_new_job (id, task, run_at, args, queue, priority, key, hold, max_attempts,
                             timeout, expires_at, created_at, flow)
select o.job_id, s.target, o.run_at, s.args, s.queue, s.priority, json_extract(e.value, '$.key'),
    3600000000, s.max_attempts, s.timeout,
    coalesce(json_extract(e.value, '$.expires_at'),
             json_extract(e.value, '$.expires_from') + t.expires),
    json_extract(i.doc, '$.now'), case s.kind when 'flow' then 1 end
from input as i cross join json_each(i.doc, '$.doc.ticks') as e
cross join duetime_schedule_tick as o
    on o.schedule_id = json_extract(e.value, '$.schedule_id')
    and o.tick = json_extract(e.value, '$.tick')
cross join duetime_schedule as s on s.id = o.schedule_id
left join duetime_task as t on t.name = s.target
where o.job_id > (select value from duetime_counter where name = 'job');

-- name: schedule_write_4
with input(doc) as (select ?)
update duetime_counter
set value = value + (select json_array_length(doc, '$.doc.ticks') from input)
where name = 'job';

-- name: schedule_write_5
with input(doc) as (select ?), n as materialized (
    select json_extract(e.value, '$.id') as id,
        json_extract(e.value, '$.planned_until') as planned_until,
        json_extract(e.value, '$.next_run_at') as next_run_at,
        json_extract(e.value, '$.plain') as plain, json_extract(e.value, '$.at_once') as at_once,
        json_extract(e.value, '$.grace') as grace,
        json_extract(e.value, '$.enqueued') as enqueued, json_extract(i.doc, '$.now') as now
    from input as i cross join json_each(i.doc, '$.doc.schedules') as e
)
update duetime_schedule as s
set planned_until = n.planned_until, next_run_at = n.next_run_at, plain = n.plain,
    at_once = n.at_once, grace = n.grace,
    last_enqueued_at = iif(n.enqueued, n.now, s.last_enqueued_at)
from n
where s.id = n.id;

-- name: schedule_write_6
with input(doc) as (select ?)
select o.schedule_id, o.tick, o.job_id
from input as i cross join json_each(i.doc, '$.doc.ticks') as e
cross join duetime_schedule_tick as o
    on o.schedule_id = json_extract(e.value, '$.schedule_id')
    and o.tick = json_extract(e.value, '$.tick')
where o.job_id > (select value from duetime_counter where name = 'job')
    - json_array_length(i.doc, '$.doc.ticks');

-- name: schedule_mark
-- What became of ticks whose jobs were claimed. `expect`: only if the tick still stands so;
-- `held_by`: only if that worker was the last to decide on it, and it has not begun.
-- `materialized`, here and elsewhere, makes the list the outer loop: else SQLite reads the whole
-- table, and the list again for each of its rows.
with input(doc) as (select ?), m as materialized (
    select json_extract(e.value, '$.schedule_id') as schedule_id,
        json_extract(e.value, '$.tick') as tick, json_extract(e.value, '$.expect') as expect,
        json_extract(e.value, '$.status') as status, json_extract(e.value, '$.runs_as') as runs_as,
        json_extract(e.value, '$.reason') as reason, json_extract(e.value, '$.worker') as worker,
        json_extract(e.value, '$.run_at') as run_at,
        json_extract(e.value, '$.begun') as begun, json_extract(e.value, '$.done') as done,
        json_extract(e.value, '$.held_by') as held_by,
        json_extract(i.doc, '$.now') as now
    from input as i cross join json_each(i.doc, '$.doc') as e
)
update duetime_schedule_tick as o
set status = coalesce(m.status, o.runs_as), reason = coalesce(m.reason, o.reason), runs_as = coalesce(m.runs_as, o.runs_as),
    run_at = coalesce(m.run_at, o.run_at), worker = coalesce(m.worker, o.worker),
    begun_at = iif(m.begun, coalesce(o.begun_at, m.now), o.begun_at),
    finished_at = iif(m.done, m.now, o.finished_at)
from m
where o.schedule_id = m.schedule_id and o.tick = m.tick
  and (m.expect is null or o.status = m.expect)
  and (m.held_by is null or o.worker = m.held_by and o.begun_at is null);

-- name: schedule_supersede
-- The armed runs of schedules end: they are paused or changed, or (`all`) removed. Ticks that lie
-- ahead leave the ledger, so that they can be planned anew. What is due, or claimed, goes on.
-- `+a.outcome` keeps SQLite from the index of how attempts ended, where most are of others.
with input(doc) as (select ?)
insert into duetime_end_waiting (job_id, outcome, error_code, facts, at)
select o.job_id, 'superseded', json_extract(i.doc, '$.doc.reason.code'),
    json_extract(i.doc, '$.doc.reason.facts'), json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc.ids') as e
cross join duetime_schedule_tick as o indexed by duetime_schedule_tick_open on o.schedule_id = e.value
where o.job_id is not null and o.finished_at is null and o.begun_at is null
  and o.runs_as = 'fired'
  and (o.tick > json_extract(i.doc, '$.now') or json_extract(i.doc, '$.doc.all'))
  and (exists (select 1 from duetime_due as d where d.job_id = o.job_id and d.attempt = 0)
       or exists (select 1 from duetime_parked as p where p.job_id = o.job_id and p.attempt = 0));

-- name: schedule_supersede_2
with input(doc) as (select ?)
delete from duetime_schedule_tick
where schedule_id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
  and tick > (select json_extract(doc, '$.now') from input)
  and job_id is not null and finished_at is null
  and exists (select 1 from duetime_attempt as a
              where a.job_id = duetime_schedule_tick.job_id and +a.outcome = 'superseded');

-- name: schedule_supersede_3
with input(doc) as (select ?)
delete from duetime_schedule_tick
where schedule_id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
  and tick > (select json_extract(doc, '$.now') from input) and job_id is null;

-- name: schedule_supersede_4
with input(doc) as (select ?)
update duetime_schedule_tick indexed by duetime_schedule_tick_open
set status = 'skipped', reason = (select json_extract(doc, '$.doc.reason') from input),
    finished_at = (select json_extract(doc, '$.now') from input)
where schedule_id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
  and job_id is not null and finished_at is null
  and exists (select 1 from duetime_attempt as a
              where a.job_id = duetime_schedule_tick.job_id and +a.outcome = 'superseded')
returning job_id;

-- name: schedule_unrecorded
-- Runs that finished just now are left out: the worker that ran them is about to record them.
with input(doc) as (select ?)
select o.job_id from duetime_schedule_tick as o indexed by duetime_schedule_tick_open
cross join input as i
where o.job_id is not null and o.finished_at is null and o.run_at <= json_extract(i.doc, '$.now')
  and exists (
    select 1 from duetime_attempt as a
    where a.job_id = o.job_id
      and a.finished_at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.patience')
      and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired'))
  and not exists (select 1 from duetime_due as d where d.job_id = o.job_id)
limit 500;

-- name: schedule_record_finished
-- Copy into the ledger how runs ended, and release the runs that wait for them. A run that was
-- requeued by a person ends once more; its failures are not counted again. A run that failed, and
-- whose retry came too late, has failed: only one that never ran is skipped. First the schedules
-- count, then the runs are closed. Returns the schedules with their failures in a row.
with input(doc) as (select ?),
seen as (
    select o.schedule_id, o.job_id, o.begun_at, o.finished_at, o.succeeded
    from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_schedule_tick as o on o.job_id = e.value
), ended as (
    select s.schedule_id, iif(f.job_id is null, a.outcome, 'dead') as outcome,
        coalesce(f.started_at, a.started_at) as started_at, s.finished_at is null as is_first
    from seen as s cross join duetime_attempt as a on a.job_id = s.job_id
    left join duetime_attempt as f on f.job_id = s.job_id and f.token = (
        select max(t.token) from duetime_attempt as t
        where t.job_id = s.job_id and a.outcome = 'expired'
          and (t.outcome = 'retried' or t.outcome = 'lost' and s.begun_at is not null))
    where a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
      and a.token = (select max(last.token) from duetime_attempt as last where last.job_id = s.job_id)
      and not exists (select 1 from duetime_due as d where d.job_id = s.job_id)
      and (s.finished_at is null
           or a.outcome = 'completed' and s.succeeded is not true
           or a.outcome = 'dead' and (s.succeeded is null or a.finished_at > s.finished_at))
), counted as (
    select schedule_id, max(started_at) as started_at, sum(outcome = 'completed') as good,
        sum(outcome = 'dead' and is_first) as bad
    from ended group by schedule_id
)
update duetime_schedule as s
set failures = iif(c.good > 0, 0, s.failures + c.bad),
    last_run_at = nullif(max(coalesce(s.last_run_at, 0), coalesce(c.started_at, 0)), 0)
from counted as c where s.id = c.schedule_id;

-- name: schedule_record_finished_2
-- What waits looks again: for a place in its schedule, or for the schedule that it comes after.
with input(doc) as (select ?),
seen as (
    select o.schedule_id, o.job_id, o.finished_at, o.succeeded
    from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_schedule_tick as o on o.job_id = e.value
), ended as (
    select distinct n.id, n.name
    from seen cross join duetime_attempt as a on a.job_id = seen.job_id
    cross join duetime_schedule as n on n.id = seen.schedule_id
    where a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
      and (seen.finished_at is null or a.outcome = 'completed' and seen.succeeded is not true)
)
update duetime_due set run_at = (select json_extract(doc, '$.now') from input)
where run_at > (select json_extract(doc, '$.now') from input) and job_id in (
    -- Only as many as there are places: the others would come, look, and go back. One that was
    -- moved comes at its time.
    select w.job_id from (
        select o.job_id, s.at_once, row_number() over (partition by s.id order by o.tick) as place
        from duetime_schedule_tick as o indexed by duetime_schedule_tick_waiting
        cross join duetime_schedule as s on s.id = o.schedule_id
        where o.status = 'waiting' and o.job_id is not null and o.finished_at is null
          and o.run_at <= (select json_extract(doc, '$.now') from input)
          and (s.id in (select id from ended)
               or iif(json_valid(s.policy), json_extract(s.policy, '$.after'), null)
                  in (select name from ended))) as w
    where w.at_once is null or w.place <= w.at_once);

-- name: schedule_record_finished_3
with input(doc) as (select ?),
seen as (
    select o.schedule_id, o.tick, o.job_id, o.begun_at, o.finished_at, o.succeeded
    from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_schedule_tick as o on o.job_id = e.value
), ended as materialized (
    select s.schedule_id, s.tick, iif(f.job_id is null, a.outcome, 'dead') as outcome,
        coalesce(f.claimed_at, a.claimed_at) as claimed_at,
        coalesce(f.started_at, a.started_at) as started_at,
        coalesce(f.finished_at, a.finished_at) as finished_at, coalesce(f.error, a.error) as error,
        a.error_code, a.facts, n.name as worker, s.finished_at is null as is_first
    from seen as s cross join duetime_attempt as a on a.job_id = s.job_id
    left join duetime_attempt as f on f.job_id = s.job_id and f.token = (
        select max(t.token) from duetime_attempt as t
        where t.job_id = s.job_id and a.outcome = 'expired'
          and (t.outcome = 'retried' or t.outcome = 'lost' and s.begun_at is not null))
    left join duetime_worker_name as n on n.id = coalesce(f.worker_id, a.worker_id)
    where a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
      and a.token = (select max(last.token) from duetime_attempt as last where last.job_id = s.job_id)
      and not exists (select 1 from duetime_due as d where d.job_id = s.job_id)
      and (s.finished_at is null
           or a.outcome = 'completed' and s.succeeded is not true
           or a.outcome = 'dead' and (s.succeeded is null or a.finished_at > s.finished_at))
)
update duetime_schedule_tick as o
set status = case when e.outcome = 'expired' then 'skipped'
                  when not e.is_first and o.status in ('skipped', 'coalesced') then o.runs_as
                  when o.status not in ('armed', 'waiting') then o.status
                  when e.outcome in ('cancelled', 'superseded')
                       and o.begun_at is null then 'skipped'
                  else o.runs_as end,
    reason = case when e.outcome = 'expired'
                       or e.outcome in ('cancelled', 'superseded')
                          and o.status in ('armed', 'waiting') and o.begun_at is null
                  then json_object('code', coalesce(e.error_code, e.outcome), 'facts',
                                   json_patch(json_patch('{}', json_object('text', e.error)),
                                              coalesce(e.facts, '{}')))
                  else o.reason end,
    begun_at = coalesce(o.begun_at, e.claimed_at), worker = coalesce(e.worker, o.worker),
    started_at = e.started_at, finished_at = e.finished_at,
    succeeded = case e.outcome when 'completed' then 1 when 'dead' then 0 end,
    error = iif(e.outcome = 'dead', e.error, null)
from ended as e where +e.schedule_id = o.schedule_id and +e.tick = o.tick
returning schedule_id, (select s.failures from duetime_schedule as s where s.id = schedule_id);

-- name: schedule_nudge
-- Runs that wait for others: if those have finished or were skipped meanwhile, they are checked at once.
with input(doc) as (select ?)
update duetime_due set run_at = (select json_extract(doc, '$.now') from input)
where run_at > (select json_extract(doc, '$.now') from input) and job_id in (
    -- As many as there are places; one that is due and not decided on yet comes first.
    select w.job_id from (
        select o.job_id, f.places, row_number() over (partition by f.id order by o.tick) as place
        from (select s.id, s.at_once - (select count(*) from duetime_open_run as r
                                        where r.schedule_id = s.id
                                          and (r.begun or r.status = 'armed'
                                               and r.run_at <= json_extract(i.doc, '$.now')))
                  as places
              from input as i cross join json_each(i.doc, '$.doc') as e
              cross join duetime_schedule as s on s.id = e.value) as f
        cross join duetime_schedule_tick as o indexed by duetime_schedule_tick_open
            on o.schedule_id = f.id
        where o.status = 'waiting' and json_extract(o.reason, '$.code') = 'overlap'
          and o.job_id is not null and o.finished_at is null
          and o.run_at <= (select json_extract(doc, '$.now') from input)) as w
    where w.place <= w.places);

-- name: schedule_insert
with input(doc) as (select ?)
insert into duetime_schedule (id, name, kind, target, args, queue, priority, max_attempts, timeout,
                              timetable, policy, owner, declared, planned_until, next_run_at,
                              created_at, updated_at)
select (select value from duetime_counter where name = 'schedule') + e.key + 1,
    json_extract(e.value, '$.name'), json_extract(e.value, '$.kind'),
    json_extract(e.value, '$.target'), json_extract(e.value, '$.args'),
    json_extract(e.value, '$.queue'), json_extract(e.value, '$.priority'),
    json_extract(e.value, '$.max_attempts'), json_extract(e.value, '$.timeout'),
    json_extract(e.value, '$.timetable'), json_extract(e.value, '$.policy'),
    json_extract(e.value, '$.owner'), json_extract(e.value, '$.declared'), json_extract(e.value, '$.planned_until'),
    json_extract(e.value, '$.planned_until'), json_extract(i.doc, '$.now'),
    json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc') as e
where true
on conflict (name) do nothing;

-- name: schedule_insert_2
with input(doc) as (select ?)
update duetime_counter set value = value + (select json_array_length(doc, '$.doc') from input)
where name = 'schedule';

-- name: schedule_insert_3
with input(doc) as (select ?)
select s.id from input as i cross join duetime_schedule as s
where s.id > (select value from duetime_counter where name = 'schedule')
    - json_array_length(i.doc, '$.doc')
order by s.id;

-- name: schedule_update
with input(doc) as (select ?), g as materialized (
    select e.value, json_extract(i.doc, '$.now') as now
    from input as i cross join json_each(i.doc, '$.doc') as e
)
update duetime_schedule as s
set target = json_extract(g.value, '$.target'), kind = json_extract(g.value, '$.kind'),
    args = coalesce(json_extract(g.value, '$.args'), s.args), queue = json_extract(g.value, '$.queue'),
    priority = json_extract(g.value, '$.priority'),
    max_attempts = json_extract(g.value, '$.max_attempts'),
    timeout = json_extract(g.value, '$.timeout'),
    timetable = coalesce(json_extract(g.value, '$.timetable'), s.timetable),
    policy = coalesce(json_extract(g.value, '$.policy'), s.policy),
    owner = json_extract(g.value, '$.owner'),
    declared = json_extract(g.value, '$.declared'), plain = null,
    planned_until = json_extract(g.value, '$.planned_until'),
    next_run_at = json_extract(g.value, '$.next_run_at'),
    paused_at = json_extract(g.value, '$.paused_at'),
    paused_by = json_extract(g.value, '$.paused_by'),
    pause_reason = json_extract(g.value, '$.pause_reason'),
    paused_until = json_extract(g.value, '$.paused_until'),
    failures = json_extract(g.value, '$.failures'), broken = json_extract(g.value, '$.broken'),
    revision = s.revision + 1, updated_at = g.now
from g
where s.id = json_extract(g.value, '$.id');

-- name: schedule_follow
-- What came after one schedule comes after another.
with input(doc) as (select ?)
update duetime_schedule
set policy = json_set(policy, '$.after', (select json_extract(doc, '$.doc.new') from input))
where iif(json_valid(policy), json_extract(policy, '$.after'), null)
      = (select json_extract(doc, '$.doc.old') from input);

-- name: schedule_rename
with input(doc) as (select ?)
update duetime_schedule set name = (select json_extract(doc, '$.doc.name') from input)
where id = (select json_extract(doc, '$.doc.id') from input);

-- name: service_lock
-- Returns the service's newest release.
with input(doc) as (select ?)
insert into duetime_service (name, release, updated_at)
select json_extract(doc, '$.doc.name'), json_extract(doc, '$.doc.release'),
    json_extract(doc, '$.now')
from input where true
on conflict (name) do update set name = excluded.name
returning release;

-- name: service_release
with input(doc) as (select ?)
update duetime_service
set release = (select json_extract(doc, '$.doc.release') from input),
    updated_at = (select json_extract(doc, '$.now') from input)
where name = (select json_extract(doc, '$.doc.name') from input);

-- name: schedule_move
-- Another time for an armed run: its tick, and so its key, stay. Without `expires_at` its task says
-- when it expires, as when it was armed. Zero rows: it has begun.
with input(doc) as (select ?)
update duetime_schedule_tick set run_at = (select json_extract(doc, '$.doc.run_at') from input)
where schedule_id = (select json_extract(doc, '$.doc.schedule_id') from input)
  and tick = (select json_extract(doc, '$.doc.tick') from input)
  and exists (select 1 from duetime_due as d
              where d.job_id = duetime_schedule_tick.job_id and d.attempt = 0);

-- name: schedule_move_2
with input(doc) as (select ?)
update duetime_job set expires_at = (
    select coalesce(json_extract(i.doc, '$.doc.expires_at'), json_extract(i.doc, '$.doc.run_at') + (
        select t.expires from duetime_task as t where t.name = duetime_job.task))
    from input as i)
where id in (select o.job_id from input as i cross join duetime_schedule_tick as o
             on o.schedule_id = json_extract(i.doc, '$.doc.schedule_id')
             and o.tick = json_extract(i.doc, '$.doc.tick'))
  and exists (select 1 from duetime_due as d where d.job_id = duetime_job.id and d.attempt = 0);

-- name: schedule_move_3
with input(doc) as (select ?)
update duetime_due set run_at = (select json_extract(doc, '$.doc.run_at') from input)
where attempt = 0 and job_id in (select o.job_id from input as i cross join duetime_schedule_tick as o
    on o.schedule_id = json_extract(i.doc, '$.doc.schedule_id')
    and o.tick = json_extract(i.doc, '$.doc.tick'))
returning job_id;

-- name: schedule_delete
-- SQLite checks foreign keys only if that is enabled: the ledger goes first.
with input(doc) as (select ?)
delete from duetime_schedule_tick
where schedule_id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: schedule_delete_2
with input(doc) as (select ?)
delete from duetime_schedule
where id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: schedule_success
-- When each named schedule last succeeded, recorded or not yet.
with input(doc) as (select ?)
select s.name, nullif(max(coalesce(
    -- The last ticks: one that failed may have succeeded later, when it was requeued.
    (select max(o.finished_at) from (
        select o.finished_at from duetime_schedule_tick as o
        where o.schedule_id = s.id and o.succeeded order by o.tick desc limit 100) as o), 0),
    coalesce((select max(a.finished_at)
     from duetime_schedule_tick as o indexed by duetime_schedule_tick_open
     cross join duetime_attempt as a on a.job_id = o.job_id
     where o.schedule_id = s.id and o.job_id is not null and o.finished_at is null
       and +a.outcome = 'completed'), 0)), 0)
from duetime_schedule as s
where s.name in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: schedule_history
with input(doc) as (select ?)
select s.name, o.tick, o.run_at, o.status, o.runs_as, o.reason, o.job_id, o.enqueued_at,
    o.begun_at, o.worker, o.started_at, o.finished_at, o.succeeded, o.error
from input as i cross join duetime_schedule as s on s.name = json_extract(i.doc, '$.doc.name')
cross join duetime_schedule_tick as o on o.schedule_id = s.id
where (json_extract(i.doc, '$.doc.before') is null or o.tick < json_extract(i.doc, '$.doc.before'))
  and (json_extract(i.doc, '$.doc.since') is null or o.tick >= json_extract(i.doc, '$.doc.since'))
  and (json_extract(i.doc, '$.doc.status') is null or o.status = json_extract(i.doc, '$.doc.status'))
order by o.tick desc limit (select json_extract(doc, '$.doc.most') from input);

-- name: schedule_page
-- Some schedules, by id.
with input(doc) as (select ?)
select s.id from input as i cross join duetime_schedule as s
    on s.id > json_extract(i.doc, '$.doc.after')
order by s.id limit (select json_extract(doc, '$.doc.most') from input);

-- name: schedule_prune
-- Of each schedule, from where its ledger begins until the first tick that is young; what has not
-- ended long ago stays.
with input(doc) as (select ?)
delete from duetime_schedule_tick where (schedule_id, tick) in (
    select o.schedule_id, o.tick
    from (select doc, json_extract(doc, '$.now') - json_extract(doc, '$.doc.age') as before
          from input) as i
    cross join json_each(i.doc, '$.doc.ids') as e
    cross join duetime_schedule_tick as o on o.schedule_id = e.value and o.tick < i.before
    where o.finished_at < i.before
    limit (select json_extract(doc, '$.doc.most') from input))
returning 1;

-- name: preset_put
with input(doc) as (select ?)
insert into duetime_schedule_preset (name, timetable, description, updated_at)
select json_extract(doc, '$.doc.name'), json_extract(doc, '$.doc.timetable'),
    json_extract(doc, '$.doc.description'), json_extract(doc, '$.now')
from input where true
on conflict (name) do update set (timetable, description, updated_at)
    = (excluded.timetable, excluded.description, excluded.updated_at);

-- name: preset_delete
with input(doc) as (select ?)
delete from duetime_schedule_preset
where name = (select json_extract(doc, '$.doc.name') from input) returning name;

-- name: preset_lock
with input(doc) as (select ?)
select p.name, p.timetable, p.description from duetime_schedule_preset as p
where p.name = (select json_extract(doc, '$.doc.name') from input);

-- name: preset_find
with input(doc) as (select ?)
select t.name, t.timetable, t.description
from duetime_schedule_preset as t cross join input order by t.name;
