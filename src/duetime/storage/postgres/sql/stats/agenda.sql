-- Statements that read what comes next. Each reads a bounded number of rows along an index.

-- name: agenda_schedules
-- The schedules that run next. Served by schedule_next.
select s.id, s.name, s.kind, s.target, s.args::text, s.queue, s.priority, s.max_attempts,
    (extract(epoch from s.timeout) * 1000000)::bigint, s.timetable::text, s.policy::text,
    s.planned_until, s.next_run_at, s.last_run_at, s.last_enqueued_at, s.paused_at, s.paused_by,
    s.pause_reason, s.paused_until, s.failures, s.broken::text, s.declared, s.revision, s.created_at,
    s.updated_at, s.plain, s.owner
from json_to_record(%s::json) as g(most integer)
cross join lateral (
    select * from duetime.schedule as s where s.paused_at is null and s.broken is null
    order by s.next_run_at limit g.most) as s;

-- name: agenda_reminders
-- The armed reminders after one of them. Served by reminder_armed and subject_pkey.
with g as materialized (
    select g.at, g.id, coalesce(g.until, 'infinity') as until, g.most
    from json_to_record(%s::json) as g(at timestamptz, id bigint, until timestamptz, most integer)
)
select r.id, r.run_at, s.ref, u.body::text, u.name, r.recipient, r.job_id
from (select * from duetime.reminder as r
      where r.status = 'armed' and r.run_at >= (select at from g)
        and (r.run_at, r.id) > ((select at from g), (select id from g))
        and r.run_at <= (select until from g)
      order by r.run_at, r.id limit (select most from g)) as r
cross join lateral (select s.ref from duetime.subject as s where s.id = r.subject_id offset 0) as s
cross join lateral (select u.body, u.name from duetime.rule as u where u.id = r.rule offset 0) as u
order by r.run_at, r.id;

-- name: agenda_jobs
-- The first jobs of each lane after one of them, in order of time. Served by due_pkey and job_pkey.
with g as materialized (
    select g.lanes, g.at, g.id, coalesce(g.until, 'infinity') as until, g.most
    from json_to_record(%s::json)
        as g(lanes json, at timestamptz, id bigint, until timestamptz, most integer)
), lane as materialized (
    select e.value ->> 0 as queue, (e.value ->> 1)::smallint as priority
    from json_array_elements((select lanes from g)) as e(value)
)
select d.queue, d.priority, d.run_at, d.job_id, j.task, j.key, j.flow
from lane as l cross join lateral (
    select * from duetime.due as d
    where d.queue = l.queue and d.priority = l.priority
      and (d.run_at, d.job_id) > ((select at from g), (select id from g))
      and d.run_at <= (select until from g)
    order by d.run_at, d.job_id limit (select most from g)) as d
cross join lateral (
    select j.task, j.key, j.flow from duetime.job as j where j.id = d.job_id offset 0) as j
order by d.queue, d.priority, d.run_at, d.job_id;

-- name: agenda_of_recipient
-- The armed reminders of a recipient in a window. Served by reminder_recipient and subject_pkey.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(recipient text, since timestamptz, until timestamptz, most integer)
)
select r.id, r.run_at, s.ref, u.body::text, u.name, r.recipient, r.job_id
from (select r.* from (
          select * from duetime.reminder as r
          where r.status = 'armed' and r.recipient = (select recipient from g) and r.recipient <> ''
          limit (select 10 * most from g)) as r
      where r.run_at >= (select since from g) and r.run_at < (select until from g)
      order by r.run_at, r.id limit (select most from g)) as r
cross join lateral (select s.ref from duetime.subject as s where s.id = r.subject_id offset 0) as s
cross join lateral (select u.body, u.name from duetime.rule as u where u.id = r.rule offset 0) as u
order by r.run_at, r.id;

-- name: ended_of_recipient
-- The reminders of a recipient that were sent or failed in a window, newest first. Served by
-- reminder_ended and subject_pkey.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(recipient text, since timestamptz, until timestamptz, most integer)
)
select r.id, r.ended_at, s.ref, u.body::text, u.name, r.status
from (select * from duetime.reminder as r
      where r.status in ('sent', 'failed') and r.recipient <> ''
        and r.recipient = (select recipient from g)
        and r.ended_at >= (select since from g) and r.ended_at < (select until from g)
      order by r.ended_at desc limit (select most from g)) as r
cross join lateral (select s.ref from duetime.subject as s where s.id = r.subject_id offset 0) as s
cross join lateral (select u.body, u.name from duetime.rule as u where u.id = r.rule offset 0) as u
order by r.ended_at desc, r.id desc;

-- name: armed_times
-- When reminders are due, the next first. Index: reminder_armed.
select n.run_at from json_to_record(%s::json) as g(until timestamptz, "limit" integer)
cross join lateral (
    select r.run_at from duetime.reminder as r
    where r.status = 'armed' and r.run_at < g.until
    order by r.run_at limit g."limit"
) as n order by n.run_at;
