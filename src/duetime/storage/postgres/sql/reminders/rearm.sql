-- Statements of `duetime.rearm`: subjects that are marked as stale. Index: subject_rearm.

-- name: rearm_ask
select duetime.request_rearm((%s::json ->> 'at')::timestamptz);

-- name: rearm_stale
with input as materialized (
    select * from json_to_record(%s::json) as g(after bigint, most integer)
)
select s.id from duetime.subject as s
where s.rearm_at <= (select duetime.now()) and s.id > (select after from input)
order by s.id limit (select most from input);

-- name: rearm_overdue
-- Whether a marked subject is overdue to be armed.
select 1 from json_to_record(%s::json) as g(patience bigint)
where exists (select from duetime.subject as s
              where s.rearm_at <= (select duetime.now()) - g.patience * interval '1 microsecond')
   or exists (select from duetime.bulk_change as c
              where c.at <= (select duetime.now()) - g.patience * interval '1 microsecond');

-- name: reminders_check
-- Whether a repair may have something to do. Indexes: reminder_armed, digest_sending, subject_rearm.
select 1 from json_to_record(%s::json) as g(patience bigint)
where exists (select from duetime.reminder as r
              where r.status = 'armed' and r.run_at <= (select duetime.now()))
   or exists (select from duetime.digest as d where d.status = 'sending')
   or exists (select from duetime.subject as s
              where s.rearm_at <= (select duetime.now()) - g.patience * interval '1 microsecond')
   or exists (select from duetime.bulk_change as c
              where c.at <= (select duetime.now()) - g.patience * interval '1 microsecond');

-- name: rearm_turn
-- Whether no other worker repairs at the moment. The statements that follow see what earlier repairs did.
select pg_try_advisory_xact_lock(hashtext('duetime.rearm')) where %s::json is not null;

-- name: rearm_alive
-- Jobs that will look at marks: in a worker's hands, or waiting in the lane in which they are asked
-- for, or in the one of suspects. One for a later time does not count, unless it is a retry.
with input as materialized (
    select g.task, t.queue, (select duetime.now()) as now
    from json_to_record(%s::json) as g(task text, remind text)
    cross join lateral duetime._task_options(g.remind) as t
)
select j.id from input as i
cross join lateral (
    select q.job_id from duetime.due as q
    where q.queue = i.queue and q.priority in (0, 10)
      and q.run_at <= i.now + interval '2 minutes'
      and (q.run_at <= i.now + interval '1 second' or q.attempt > 0)
    union all
    select held.job_id from duetime.claim as c cross join unnest(c.job_ids) as held(job_id)
    where not exists (select from duetime.attempt as a
                      where a.job_id = held.job_id and a.token = c.token)
    union all
    select k.job_id from duetime.parked as k where k.task = i.task
) as live
join duetime.job as j on j.id = live.job_id and j.task = i.task
limit 1;

-- name: rearm_scopes
select distinct s.scope from duetime.subject as s
where s.id = any (array(select value::bigint from json_array_elements_text(%s::json -> 'ids')))
  and s.scope is not null;

-- name: rearm_share
-- Lock these scopes as `scope_lock` does; return those around which no other transaction is changing one.
with recursive chain as (
    select s.ref as name, s.ref, s.parent, 0 as level from duetime.scope as s
    where s.ref = any (array(select value from json_array_elements_text(%s::json)))
    union all
    select c.name, s.ref, s.parent, c.level + 1
    from duetime.scope as s join chain as c on s.ref = c.parent
    where c.level < 100
), shared as materialized (
    select s.ref from duetime.scope as s
    where s.ref in (select ref from chain) order by s.ref for share of s skip locked
)
select c.name from chain as c left join shared as s on s.ref = c.ref
group by c.name having count(*) = count(s.ref);

-- name: rearm_lock
-- What others have locked is left to them, or to a later look. One that also waits for a change: as of that.
select s.id, least(s.rearm_at, (select c.at from duetime.bulk_change as c where c.id = -s.armed_under))
from duetime.subject as s cross join (select %s::json as doc) as i
where s.id = any (array(select value::bigint from json_array_elements_text(i.doc -> 'ids')))
  and s.rearm_at <= (select duetime.now())
  and (s.scope is null
       or s.scope = any (array(select value from json_array_elements_text(i.doc -> 'scopes'))))
order by s.id
for update of s skip locked;

-- name: rearm_clear
update duetime.subject set rearm_at = null
where id = any (array(select value::bigint from json_array_elements_text(%s::json)))
returning id, ref;

-- name: rearm_late
select duetime._catch_up(array(select value::bigint from json_array_elements_text(%s::json)));

-- name: rearm_these
select duetime.rearm(array(select value::bigint from json_array_elements_text(g.ids)), g.why)
from json_to_record(%s::json) as g(ids json, why json);

-- name: change_begin
select duetime._begin_change() where %s::json is not null;

-- name: change_end
select duetime._end_change(g.change, array(select value::bigint from json_array_elements_text(g.ids)))
from json_to_record(%s::json) as g(ids json, change bigint);

-- name: scope_changed
select duetime.scope_changed(%s::json ->> 'ref');

-- name: follow_changes
select duetime.follow_changes((%s::json ->> 'most')::integer);

-- name: rearm_outdated
-- One whose reminder is due now is not left to the others' turn.
select duetime._rearm_outdated(array_agg(s.id), n.id, n.at)
from json_to_record(%s::json) as g(refs json)
join duetime.subject as s on s.ref = any (array(select json_array_elements_text(g.refs)))
cross join (select max(c.id) as id, min(c.at) as at from duetime.bulk_change as c) as n
where n.id is not null and duetime._is_outdated(s.scope, s.armed_under)
group by n.id, n.at;

-- name: scope_progress
-- The changes of a scope, or of one around it, that workers have yet to follow: how many subjects are left.
with recursive chain as (
    select s.ref, s.parent, 0 as level from duetime.scope as s where s.ref = %s::json ->> 'ref'
    union
    select s.ref, s.parent, c.level + 1 from duetime.scope as s join chain as c on s.ref = c.parent
    where c.level < 100
)
select c.scope, c.at, c.total, p.count
from duetime.bulk_change as c
cross join lateral (select sum(cardinality(p.ids))::bigint as count
                    from duetime.bulk_change_part as p where p.change_id = c.id) as p
where c.scope in (select ref from chain) order by c.id;
