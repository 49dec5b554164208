-- Statements that read what comes next. Each reads a bounded number of rows along an index.

-- name: agenda_schedules
-- The schedules that run next. Served by schedule_next.
with input(doc) as (select ?)
select s.id, s.name, s.kind, s.target, s.args, s.queue, s.priority, s.max_attempts, s.timeout,
    s.timetable, s.policy, s.planned_until, s.next_run_at, s.last_run_at, s.last_enqueued_at,
    s.paused_at, s.paused_by, s.pause_reason, s.paused_until, s.failures, s.broken, s.declared,
    s.revision, s.created_at, s.updated_at, s.plain, s.owner
from duetime_schedule as s indexed by duetime_schedule_next
where s.paused_at is null and s.broken is null
order by s.next_run_at is null, s.next_run_at
limit (select json_extract(doc, '$.doc.most') from input);

-- name: agenda_reminders
-- The armed reminders after one of them. Served by reminder_armed.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.at') as at, json_extract(doc, '$.doc.id') as id,
        coalesce(json_extract(doc, '$.doc.until'), 9223372036854775807) as until,
        json_extract(doc, '$.doc.most') as most from input
), next as materialized (
    select r.id, r.run_at, r.subject_id, r.rule, r.recipient, r.job_id
    from duetime_reminder as r indexed by duetime_reminder_armed
    where r.status = 'armed' and r.run_at >= (select at from g) and r.run_at <= (select until from g)
      and (r.run_at > (select at from g) or r.id > (select id from g))
    order by r.run_at, r.id limit (select most from g)
)
select n.id, n.run_at, s.ref, u.body, u.name, n.recipient, n.job_id
from next as n cross join duetime_subject as s on s.id = n.subject_id
cross join duetime_rule as u on u.id = n.rule
order by n.run_at, n.id;

-- name: agenda_jobs
-- The first jobs of each lane after one of them, in order of time. Served by due_lane.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.at') as at, json_extract(doc, '$.doc.id') as id,
        coalesce(json_extract(doc, '$.doc.until'), 9223372036854775807) as until,
        json_extract(doc, '$.doc.most') as most from input
), lane as materialized (
    select json_extract(e.value, '$[0]') as queue, json_extract(e.value, '$[1]') as priority
    from input cross join json_each(doc, '$.doc.lanes') as e
), next as materialized (
    select l.queue, l.priority, (
        select json_group_array(json_array(f.run_at, f.job_id)) from (
            select d.run_at, d.job_id from duetime_due as d
            where d.queue = l.queue and d.priority = l.priority
              and d.run_at >= (select at from g) and d.run_at <= (select until from g)
              and (d.run_at > (select at from g) or d.job_id > (select id from g))
            order by d.run_at, d.job_id limit (select most from g)) as f
    ) as jobs from lane as l
)
select n.queue, n.priority, json_extract(e.value, '$[0]'), j.id, j.task, j.key, j.flow
from next as n cross join json_each(n.jobs) as e
cross join duetime_job as j on j.id = json_extract(e.value, '$[1]')
order by n.queue, n.priority, 3, 4;

-- name: agenda_of_recipient
-- The armed reminders of a recipient in a window. Served by reminder_recipient.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.recipient') as recipient,
        json_extract(doc, '$.doc.since') as since, json_extract(doc, '$.doc.until') as until,
        json_extract(doc, '$.doc.most') as most from input
), armed as materialized (
    select r.id, r.run_at, r.subject_id, r.rule, r.recipient, r.job_id
    from duetime_reminder as r indexed by duetime_reminder_recipient
    where r.status = 'armed' and r.recipient = (select recipient from g)
    limit (select 10 * most from g)
)
select a.id, a.run_at, s.ref, u.body, u.name, a.recipient, a.job_id
from armed as a cross join duetime_subject as s on s.id = a.subject_id
cross join duetime_rule as u on u.id = a.rule
where a.run_at >= (select since from g) and a.run_at < (select until from g)
order by a.run_at, a.id limit (select most from g);

-- name: ended_of_recipient
-- The reminders of a recipient that were sent or failed in a window, newest first. Served by
-- reminder_ended.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.recipient') as recipient,
        json_extract(doc, '$.doc.since') as since, json_extract(doc, '$.doc.until') as until,
        json_extract(doc, '$.doc.most') as most from input
), ended as materialized (
    select r.id, r.ended_at, r.subject_id, r.rule, r.status
    from duetime_reminder as r indexed by duetime_reminder_ended
    where r.status in ('sent', 'failed') and r.recipient <> ''
      and r.recipient = (select recipient from g)
      and r.ended_at >= (select since from g) and r.ended_at < (select until from g)
    order by r.ended_at desc limit (select most from g)
)
select e.id, e.ended_at, s.ref, u.body, u.name, e.status
from ended as e cross join duetime_subject as s on s.id = e.subject_id
cross join duetime_rule as u on u.id = e.rule
order by e.ended_at desc, e.id desc;

-- name: armed_times
-- When reminders are due, the next first. Index: reminder_armed.
with input(doc) as (select ?)
select r.run_at from duetime_reminder as r indexed by duetime_reminder_armed
where r.status = 'armed' and r.run_at < (select json_extract(doc, '$.doc.until') from input)
order by r.run_at limit (select json_extract(doc, '$.doc.limit') from input);
