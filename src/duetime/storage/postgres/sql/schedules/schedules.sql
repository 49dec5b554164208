-- Statements of schedules. Each takes one JSON document; those of the same name on SQLite take the
-- same, and give the same columns.

-- name: schedule_gate
-- The look before runs start: whether each is clear to run without further ado. Reads only.
-- It is clear if it is on time and leaves its places to the open runs before it, and to those that
-- have begun. All go by the same order, so of two workers that look at once one gives way. A run
-- that ended before was requeued by a person; one that only the ledger has ended (`over`) was
-- skipped by a worker that died right after. `unbegun`: it has not begun, even if its job was
-- claimed before. `start_by`: until then its start is on time. Served by schedule_tick_job and schedule_tick_open.
select o.job_id, s.id, o.tick,
    not l.over and coalesce(
        o.runs_as = 'triggered' or o.finished_at is not null or o.begun_at is not null
        or s.plain and s.paused_at is null and o.status = 'armed' and o.runs_as = 'fired'
           and (select duetime.now()) - o.run_at <= s.grace
           and (s.at_once is null
                or (select count(*) from duetime.open_run as r
                    where r.schedule_id = s.id and r.tick <> o.tick
                      and (r.begun or r.runs_as <> 'triggered'
                           and (r.run_at, r.tick) < (o.run_at, o.tick))) < s.at_once),
        false) as clear,
    l.over or o.finished_at is null and o.begun_at is null
        and (o.status = 'waiting' or o.runs_as in ('caught_up', 'backfilled')) as unbegun,
    o.status,
    case when o.runs_as = 'fired' and o.begun_at is null and o.finished_at is null
        then o.run_at + s.grace end as start_by
from duetime.schedule_tick as o join duetime.schedule as s on s.id = o.schedule_id
cross join lateral (
    -- With a limit, so that attempts are looked for by their job, and not hashed.
    select o.finished_at is not null and (
        select a.job_id from duetime.attempt as a
        where a.job_id = o.job_id
          and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
        limit 1) is null as over) as l
where o.job_id = any (array(select value::bigint from json_array_elements_text(%s::json)));

-- name: schedule_lock
select s.id, s.name, s.kind, s.target, s.args::text, s.queue, s.priority, s.max_attempts,
    (extract(epoch from s.timeout) * 1000000)::bigint, s.timetable::text, s.policy::text,
    s.planned_until, s.next_run_at, s.last_run_at, s.last_enqueued_at, s.paused_at, s.paused_by,
    s.pause_reason, s.paused_until, s.failures, s.broken::text, s.declared, s.revision, s.created_at,
    s.updated_at, s.plain, s.owner
from duetime.schedule as s cross join (select %s::json as doc) as i
where s.id = any (array(select value::bigint from json_array_elements_text(i.doc -> 'ids')))
   or s.name = any (array(select value from json_array_elements_text(i.doc -> 'names')))
order by s.id
for update of s;

-- name: schedule_try_lock
-- Lock those that no other transaction has locked. Returns the others; those that were deleted are not among them.
with given as materialized (
    select value::bigint as id from json_array_elements_text(%s::json)
), locked as materialized (
    select s.id from duetime.schedule as s where s.id = any (array(select g.id from given as g))
    order by s.id
    for update of s skip locked
)
select s.id from duetime.schedule as s
where s.id = any (array(select g.id from given as g)) and s.id not in (select l.id from locked as l);

-- name: schedule_find
-- Like `schedule_lock`, without the lock; all of them if `names` is null.
select s.id, s.name, s.kind, s.target, s.args::text, s.queue, s.priority, s.max_attempts,
    (extract(epoch from s.timeout) * 1000000)::bigint, s.timetable::text, s.policy::text,
    s.planned_until, s.next_run_at, s.last_run_at, s.last_enqueued_at, s.paused_at, s.paused_by,
    s.pause_reason, s.paused_until, s.failures, s.broken::text, s.declared, s.revision, s.created_at,
    s.updated_at, s.plain, s.owner
from duetime.schedule as s cross join (select %s::json as doc) as i
where json_typeof(i.doc -> 'names') = 'null'
   or s.name = any (array(select value from json_array_elements_text(i.doc -> 'names')))
order by s.name;

-- name: schedule_list
-- By name, those after one of them. Served by schedule_name_key.
select s.id, s.name, s.kind, s.target, s.args::text, s.queue, s.priority, s.max_attempts,
    (extract(epoch from s.timeout) * 1000000)::bigint, s.timetable::text, s.policy::text,
    s.planned_until, s.next_run_at, s.last_run_at, s.last_enqueued_at, s.paused_at, s.paused_by,
    s.pause_reason, s.paused_until, s.failures, s.broken::text, s.declared, s.revision, s.created_at,
    s.updated_at, s.plain, s.owner
from json_to_record(%s::json) as g("after" text, "limit" integer)
cross join lateral (
    select * from duetime.schedule as s where s.name > g."after" order by s.name limit g."limit"
) as s
order by s.name;

-- name: schedule_check
-- Whether `schedule_due` has something, and, if that is asked for, whether `schedule_unrecorded` may
-- have. Every worker asks, so it locks nothing.
with given as materialized (
    select duetime.now() as now, duetime.now() - g.patience * interval '1 microsecond' as before,
        g.unrecorded
    from json_to_record(%s::json) as g(patience bigint, unrecorded boolean)
)
select exists (select from duetime.schedule as s
               where s.paused_at is null and s.broken is null
                 and s.next_run_at <= (select before from given))
    or exists (select from duetime.schedule as s
               where s.paused_until is not null and s.paused_until <= (select now from given)),
    (select unrecorded from given) and exists (
        select from duetime.schedule_tick as o
        where o.job_id is not null and o.finished_at is null
          and o.run_at <= (select before from given));

-- name: schedule_due
-- Schedules that no worker has planned further, a moment after their tick; or whose pause is over.
with clock as materialized (
    select duetime.now() as now,
        duetime.now() - (%s::json ->> 'patience')::bigint * interval '1 microsecond' as before
), found as materialized (
    (select s.id from duetime.schedule as s
     where s.paused_at is null and s.broken is null
       and s.next_run_at <= (select before from clock)
     order by s.next_run_at limit 500)
    union all
    (select s.id from duetime.schedule as s
     where s.paused_until is not null and s.paused_until <= (select now from clock) limit 500)
)
select s.id from duetime.schedule as s where s.id = any (array(select id from found))
for update of s skip locked;

-- name: schedule_next
-- When `schedule_due` has something next.
select min(n.at) from (
    (select s.next_run_at + (%s::json ->> 'patience')::bigint * interval '1 microsecond' as at
     from duetime.schedule as s where s.paused_at is null and s.broken is null
       and s.next_run_at is not null
     order by s.next_run_at limit 1)
    union all
    (select s.paused_until from duetime.schedule as s where s.paused_until is not null
     order by s.paused_until limit 1)) as n;

-- name: schedule_open
-- The open runs of schedules; and, with false in the column before the last, every row of the ledger beyond
-- `after`: what has run before its time, or was backfilled.
with given as materialized (
    select * from json_to_recordset(%s::json) as g(id bigint, after timestamptz)
)
select r.schedule_id, r.tick, r.run_at, r.status, r.runs_as, r.job_id, r.begun, true, r.begun_at
from duetime.open_run as r
where r.schedule_id = any (array(select id from given))
union all
select o.schedule_id, o.tick, o.run_at, o.status, o.runs_as, o.job_id, false, false, null
from given as g
cross join lateral (
    -- With an order and a limit, so that it is the key that is searched.
    select * from duetime.schedule_tick as o where o.schedule_id = g.id and o.tick > g.after
    order by o.tick limit 100000) as o
order by 2;

-- name: schedule_paced
-- The last missed run that was caught up, or will be, before a tick. Not far back: they come in
-- their order.
select g.schedule_id, max(p.run_at)
from json_to_recordset(%s::json) as g(schedule_id bigint, before timestamptz)
cross join lateral (
    select o.run_at, o.status, o.runs_as from duetime.schedule_tick as o
    where o.schedule_id = g.schedule_id and o.tick < coalesce(g.before, 'infinity')
    order by o.tick desc limit 100) as p
where p.status = 'caught_up' or p.runs_as = 'caught_up' and p.status in ('armed', 'waiting')
group by g.schedule_id;

-- name: schedule_write
-- New rows of the ledger, their jobs, and the schedules' next step: one statement for a batch,
-- under the schedules' locks. A tick that the ledger has is left as it is. A run's key is taken
-- like any job's: if a schedule in memory has enqueued that tick, its job is the run.
with input as materialized (
    select %s::json as doc
), given as materialized (
    select t.* from input cross join lateral json_to_recordset(doc -> 'ticks') as t(
        schedule_id bigint, tick timestamptz, run_at timestamptz, status text, runs_as text,
        reason json, has_job boolean, key text, expires_at timestamptz, expires_from timestamptz,
        again boolean)
), wanted as materialized (
    select g.*, s.target from given as g join duetime.schedule as s on s.id = g.schedule_id
    where not exists (
        select from duetime.schedule_tick as o
        where o.schedule_id = g.schedule_id and o.tick = g.tick
          and not (g.runs_as = 'backfilled'
                   and (o.status in ('skipped', 'coalesced')
                        or g.again and o.finished_at is not null and o.succeeded is not true)))
), keyed as (
    insert into duetime.job_key as k (task, key, job_id, hold)
    select w.target, w.key, nextval('duetime.job_id_seq'), interval '1 hour'
    from wanted as w where w.has_job order by w.target, w.key
    on conflict (task, key) do update
    set (job_id, hold, held_until) = (excluded.job_id, excluded.hold, null)
    where k.held_until <= duetime.now()
    returning k.task, k.key, k.job_id, k.hold
), fresh as (
    insert into duetime.schedule_tick as o (schedule_id, tick, run_at, status, runs_as, reason,
                                         job_id, enqueued_at, finished_at)
    select w.schedule_id, w.tick, w.run_at, w.status, w.runs_as, w.reason,
        coalesce(k.job_id, held.job_id),
        case when w.has_job then duetime.now() end,
        case when not w.has_job then duetime.now() end
    from wanted as w
    left join keyed as k on k.task = w.target and k.key = w.key
    left join duetime.job_key as held
        on held.task = w.target and held.key = w.key and w.has_job and k.job_id is null
    -- One enqueued this very moment is not seen here: it runs, without a row of the ledger.
    -- One that failed and was requeued holds its key, and is left alone.
    where not w.has_job or k.job_id is not null or held.job_id is not null and not w.again
    on conflict (schedule_id, tick) do update
    set (run_at, status, runs_as, reason, job_id, enqueued_at, finished_at)
        = (excluded.run_at, excluded.status, excluded.runs_as, excluded.reason, excluded.job_id,
           excluded.enqueued_at, excluded.finished_at),
        (begun_at, worker, started_at, succeeded, error) = (null, null, null, null, null)
    where excluded.runs_as = 'backfilled'
    returning o.schedule_id, o.tick, o.run_at, o.job_id
), made as materialized (
    select duetime._add_jobs(array_agg(duetime._new_job(
        f.job_id, s.target, f.run_at, s.args, queue => s.queue, priority => s.priority,
        key => g.key, hold => k.hold, max_attempts => s.max_attempts, timeout => s.timeout,
        expires_at => coalesce(g.expires_at, g.expires_from + t.expires),
        flow => nullif(s.kind = 'flow', false))))
    from fresh as f join given as g on g.schedule_id = f.schedule_id and g.tick = f.tick
    join keyed as k on k.job_id = f.job_id
    join duetime.schedule as s on s.id = f.schedule_id
    left join duetime.task as t on t.name = s.target
), advanced as (
    update duetime.schedule as s
    set planned_until = n.planned_until, next_run_at = n.next_run_at, plain = n.plain,
        at_once = n.at_once, grace = n.grace * interval '1 microsecond',
        last_enqueued_at = case when n.enqueued then duetime.now() else s.last_enqueued_at end
    from input cross join lateral json_to_recordset(doc -> 'schedules') as n(
        id bigint, planned_until timestamptz, next_run_at timestamptz, plain boolean,
        at_once integer, grace bigint, enqueued boolean)
    where s.id = n.id
)
select f.schedule_id, f.tick, f.job_id from made join fresh as f on true;

-- name: schedule_mark
-- What became of ticks whose jobs were claimed. `expect`: only if the tick still stands so;
-- `held_by`: only if that worker was the last to decide on it, and it has not begun.
update duetime.schedule_tick as o
set status = coalesce(m.status, o.runs_as), reason = coalesce(m.reason, o.reason), runs_as = coalesce(m.runs_as, o.runs_as),
    run_at = coalesce(m.run_at, o.run_at), worker = coalesce(m.worker, o.worker),
    begun_at = case when m.begun then coalesce(o.begun_at, duetime.now()) else o.begun_at end,
    finished_at = case when m.done then duetime.now() else o.finished_at end
from json_to_recordset(%s::json) as m(
    schedule_id bigint, tick timestamptz, expect text, status text, runs_as text, reason json,
    run_at timestamptz, worker text, begun boolean, done boolean, held_by text)
where o.schedule_id = m.schedule_id and o.tick = m.tick
  and (m.expect is null or o.status = m.expect)
  and (m.held_by is null or o.worker = m.held_by and o.begun_at is null);

-- name: schedule_supersede
select job_id from duetime.supersede_runs(%s::json) as job_id;

-- name: schedule_unrecorded
-- Runs that finished just now are left out: the worker that ran them is about to record them.
with given as materialized (
    select duetime.now() - g.patience * interval '1 microsecond' as before
    from json_to_record(%s::json) as g(patience bigint)
)
select o.job_id from duetime.schedule_tick as o
where o.job_id is not null and o.finished_at is null
  and o.run_at <= (select duetime.now())
  and exists (
    select from duetime.attempt as a
    where a.job_id = o.job_id and a.finished_at <= (select before from given)
      and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired'))
  and not exists (select from duetime.due as d where d.job_id = o.job_id)
limit 500;

-- name: schedule_record_finished
-- Copy into the ledger how runs ended, and release the runs that wait for them. A run that was
-- requeued by a person ends once more; its failures are not counted again. A run that failed, and
-- whose retry came too late, has failed: only one that never ran is skipped. Returns the schedules
-- of finished runs, with their failures in a row.
with named as materialized (
    -- By their jobs alone: a plan made for an empty ledger would walk all that is open.
    select o.schedule_id, o.tick, o.job_id, o.begun_at, o.finished_at, o.succeeded
    from duetime.schedule_tick as o
    where o.job_id = any (array(select value::bigint from json_array_elements_text(%s::json)))
), ended as materialized (
    select s.schedule_id, s.tick, case when f.job_id is null then a.outcome else 'dead' end as outcome,
        coalesce(f.claimed_at, a.claimed_at) as claimed_at,
        coalesce(f.started_at, a.started_at) as started_at,
        coalesce(f.finished_at, a.finished_at) as finished_at, coalesce(f.error, a.error) as error,
        a.error_code, a.facts,
        n.name as worker, s.finished_at is null as is_first
    from named as s
    cross join lateral (
        select a.* from duetime.attempt as a
        where a.job_id = s.job_id
          and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
        order by a.token desc limit 1) as a
    left join lateral (
        select f.* from duetime.attempt as f
        where f.job_id = s.job_id and a.outcome = 'expired'
          and (f.outcome = 'retried' or f.outcome = 'lost' and s.begun_at is not null)
        order by f.token desc limit 1) as f on true
    left join duetime.worker_name as n on n.id = coalesce(f.worker_id, a.worker_id)
    where not exists (select from duetime.due as d where d.job_id = s.job_id)
      and (s.finished_at is null
           or a.outcome = 'completed' and s.succeeded is not true
           or a.outcome = 'dead' and (s.succeeded is null or a.finished_at > s.finished_at))
), recorded as (
    update duetime.schedule_tick as o
    set status = case when e.outcome = 'expired' then 'skipped'
                      when not e.is_first and o.status in ('skipped', 'coalesced') then o.runs_as
                      when o.status not in ('armed', 'waiting') then o.status
                      when e.outcome in ('cancelled', 'superseded')
                           and o.begun_at is null then 'skipped'
                      else o.runs_as end,
        reason = case when e.outcome = 'expired'
                           or e.outcome in ('cancelled', 'superseded')
                              and o.status in ('armed', 'waiting') and o.begun_at is null
                      then duetime._attempt_reason(e.outcome, e.error_code, e.error, e.facts)
                      else o.reason end,
        begun_at = coalesce(o.begun_at, e.claimed_at), worker = coalesce(e.worker, o.worker),
        started_at = e.started_at, finished_at = e.finished_at,
        succeeded = case e.outcome when 'completed' then true when 'dead' then false end,
        error = case when e.outcome = 'dead' then e.error end
    from ended as e where o.schedule_id = e.schedule_id and o.tick = e.tick
      and (not e.is_first or o.finished_at is null)
    returning o.schedule_id, o.started_at, o.succeeded, e.is_first
), counted as (
    update duetime.schedule as s
    set failures = case when c.good > 0 then 0 else s.failures + c.bad end,
        last_run_at = greatest(s.last_run_at, c.started_at)
    from (select schedule_id, max(started_at) as started_at,
              count(*) filter (where succeeded) as good,
              count(*) filter (where not succeeded and is_first) as bad
          from recorded group by schedule_id) as c
    where s.id = c.schedule_id
    returning s.id, s.name, s.failures
), waiting as materialized (
    -- Only as many as there are places: the others would come, look, and go back. One that was
    -- moved comes at its time.
    select o.job_id, s.at_once, row_number() over (partition by s.id order by o.tick) as place
    from duetime.schedule_tick as o join duetime.schedule as s on s.id = o.schedule_id
    where o.status = 'waiting' and o.job_id is not null and o.finished_at is null
      and o.run_at <= duetime.now()
      and (s.id in (select id from counted)
           or s.policy ->> 'after' in (select name from counted))
), forward as (
    update duetime.due as d set run_at = duetime.now() from waiting as w
    where d.job_id = w.job_id and d.run_at > duetime.now()
      and (w.at_once is null or w.place <= w.at_once)
    returning d.queue
), woken as materialized (
    select count(duetime.wake(q.queue)) from (select distinct queue from forward order by 1) as q
)
select c.id, c.failures from counted as c, woken;

-- name: schedule_nudge
-- Runs that wait for others: if those have finished or were skipped meanwhile, they are checked at once.
-- As many as there are places; one that is due and not decided on yet comes first.
with free as materialized (
    select s.id, s.at_once - (select count(*) from duetime.open_run as r
                              where r.schedule_id = s.id
                                and (r.begun or r.status = 'armed' and r.run_at <= duetime.now()))
        as places
    from duetime.schedule as s
    where s.id = any (array(select value::bigint from json_array_elements_text(%s::json)))
), waiting as materialized (
    select o.job_id, f.places, row_number() over (partition by f.id order by o.tick) as place
    from duetime.schedule_tick as o join free as f on f.id = o.schedule_id
    where o.status = 'waiting' and o.reason ->> 'code' = 'overlap'
      and o.job_id is not null and o.finished_at is null and o.run_at <= duetime.now()
), moved as (
    update duetime.due as d set run_at = duetime.now() from waiting as w
    where d.job_id = w.job_id and d.run_at > duetime.now() and w.place <= w.places
    returning d.queue
)
select count(duetime.wake(q.queue)) from (select distinct queue from moved order by 1) as q;

-- name: schedule_insert
insert into duetime.schedule (name, kind, target, args, queue, priority, max_attempts, timeout,
                              timetable, policy, owner, declared, plain, planned_until,
                              next_run_at)
select g.name, g.kind, g.target, g.args, g.queue, g.priority, g.max_attempts,
    g.timeout * interval '1 microsecond', g.timetable, g.policy, g.owner, g.declared, null,
    g.planned_until, g.planned_until
from json_to_recordset(%s::json) as g(
    name text, kind text, target text, args json, queue text, priority smallint,
    max_attempts smallint, timeout bigint, timetable json, policy json, owner text,
    declared boolean, planned_until timestamptz)
order by g.name
on conflict (name) do nothing
returning id;

-- name: schedule_update
update duetime.schedule as s
set target = g.target, kind = g.kind, args = coalesce(g.args, s.args), queue = g.queue, priority = g.priority,
    max_attempts = g.max_attempts, timeout = g.timeout * interval '1 microsecond',
    timetable = coalesce(g.timetable, s.timetable), policy = coalesce(g.policy, s.policy),
    owner = g.owner, declared = g.declared, plain = null,
    planned_until = g.planned_until, next_run_at = g.next_run_at, paused_at = g.paused_at,
    paused_by = g.paused_by, pause_reason = g.pause_reason, paused_until = g.paused_until,
    failures = g.failures, broken = g.broken, revision = s.revision + 1,
    updated_at = duetime.now()
from json_to_recordset(%s::json) as g(
    id bigint, target text, kind text, args json, queue text, priority smallint,
    max_attempts smallint, timeout bigint, timetable json, policy json, owner text,
    declared boolean, planned_until timestamptz, next_run_at timestamptz, paused_at timestamptz, paused_by text,
    pause_reason text, paused_until timestamptz, failures integer, broken json)
where s.id = g.id;

-- name: schedule_rename
update duetime.schedule as s set name = g.name
from json_to_record(%s::json) as g(id bigint, name text) where s.id = g.id;

-- name: schedule_follow
-- What came after one schedule comes after another.
update duetime.schedule as s
set policy = (s.policy::jsonb || jsonb_build_object('after', g.new))::json
from json_to_record(%s::json) as g(old text, new text) where s.policy ->> 'after' = g.old;

-- name: service_lock
-- Locks the service until the end of the transaction; returns its newest release.
insert into duetime.service as s (name, release)
select g.name, g.release from json_to_record(%s::json) as g(name text, release text)
on conflict (name) do update set name = excluded.name
returning s.release;

-- name: service_release
update duetime.service as s set release = g.release, updated_at = duetime.now()
from json_to_record(%s::json) as g(name text, release text) where s.name = g.name;

-- name: schedule_move
select job_id from duetime.move_run(%s::json) as job_id;

-- name: schedule_delete
delete from duetime.schedule where id = any (array(select value::bigint from json_array_elements_text(%s::json)));

-- name: schedule_success
-- When each named schedule last succeeded, recorded or not yet.
select s.name, greatest(
    -- The last ticks: one that failed may have succeeded later, when it was requeued.
    (select max(o.finished_at) from (
        select o.finished_at from duetime.schedule_tick as o
        where o.schedule_id = s.id and o.succeeded order by o.tick desc limit 100) as o),
    (select max(a.finished_at) from duetime.schedule_tick as o
     join duetime.attempt as a on a.job_id = o.job_id
     where o.schedule_id = s.id and o.job_id is not null and o.finished_at is null
       and a.outcome = 'completed'))
from duetime.schedule as s
where s.name = any (array(select value from json_array_elements_text(%s::json)));

-- name: schedule_history
select s.name, o.tick, o.run_at, o.status, o.runs_as, o.reason::text, o.job_id, o.enqueued_at,
    o.begun_at, o.worker, o.started_at, o.finished_at, o.succeeded, o.error
from (select * from json_to_record(%s::json) as g(
        name text, since timestamptz, before timestamptz, status text, most integer)) as g
join duetime.schedule as s on s.name = g.name
cross join lateral (
    select * from duetime.schedule_tick as o
    where o.schedule_id = s.id and (g.before is null or o.tick < g.before)
      and (g.since is null or o.tick >= g.since)
      and (g.status is null or o.status = g.status)
    order by o.tick desc limit g.most) as o
order by o.tick desc;

-- name: schedule_page
-- Some schedules, by id.
select s.id from json_to_record(%s::json) as g(after bigint, most integer)
cross join lateral (
    select s.id from duetime.schedule as s where s.id > g.after order by s.id limit g.most
) as s
order by s.id;

-- name: schedule_prune
-- Of each schedule, from where its ledger begins until the first tick that is young; what has not
-- ended long ago stays. Index: the primary key.
with input as materialized (
    select array(select value::bigint from json_array_elements_text(g.ids)) as ids, g.most,
        duetime.now() - g.age * interval '1 microsecond' as before
    from json_to_record(%s::json) as g(ids json, age bigint, most integer)
), old as materialized (
    select o.schedule_id, o.tick
    from input as i cross join lateral unnest(i.ids) as s(id) cross join lateral (
        select o.schedule_id, o.tick from duetime.schedule_tick as o
        where o.schedule_id = s.id and o.tick < i.before and o.finished_at < i.before
        order by o.tick limit i.most
    ) as o
    limit (select most from input)
)
delete from duetime.schedule_tick as o using old
where o.schedule_id = old.schedule_id and o.tick = old.tick
returning 1;

-- name: preset_put
insert into duetime.schedule_preset (name, timetable, description)
select * from json_to_record(%s::json) as g(name text, timetable json, description text)
on conflict (name) do update set (timetable, description, updated_at)
    = (excluded.timetable, excluded.description, duetime.now());

-- name: preset_delete
delete from duetime.schedule_preset where name = %s::json ->> 'name' returning name;

-- name: preset_lock
select name, timetable::text, description from duetime.schedule_preset
where name = %s::json ->> 'name' for update;

-- name: preset_find
select name, timetable::text, description from duetime.schedule_preset
where %s::json is not null order by name;
