-- Statements that find what is wrong. Each reads a bounded number of rows along an index.

-- name: problem_queues
-- The limits of queues, and how much of their rates is used. Only queues that are paused or limited have
-- a row.
with input(doc) as (select ?)
select q.name, q.running, q.per_partition, q.rate, q.period,
    (select coalesce(sum(u.used), 0) from duetime_rate_use as u
     where u.queue = q.name and u.at > (select json_extract(doc, '$.now') from input) - q.period)
from input cross join duetime_queue as q;

-- name: problem_schedules
-- Served by schedule_troubled.
with input(doc) as (select ?)
select s.name, s.failures, s.broken, s.paused_at, s.paused_by, s.pause_reason, s.updated_at
from duetime_schedule as s indexed by duetime_schedule_troubled
where s.failures > 0 or s.broken is not null
order by s.id limit (select json_extract(doc, '$.doc.most') from input);

-- name: problem_reminders
-- Reminders that have failed since then, of the newest. Served by reminder_troubled.
with input(doc) as (select ?), newest as materialized (
    select r.id, r.reason, r.ended_at, r.recipient, r.subject_id
    from duetime_reminder as r indexed by duetime_reminder_troubled
    where r.status = 'failed' and r.status in ('failed', 'expired', 'skipped')
    order by r.id desc limit (select json_extract(doc, '$.doc.most') from input)
)
select n.id, n.reason, n.ended_at, n.recipient, s.ref
from newest as n cross join duetime_subject as s on s.id = n.subject_id
where n.ended_at >= (select json_extract(doc, '$.doc.since') from input);

-- name: problem_lost
-- Attempts that were lost since then. Served by attempt_ended.
with input(doc) as (select ?), newest as materialized (
    select a.finished_at from duetime_attempt as a
    where a.outcome = 'lost' and a.finished_at >= (select json_extract(doc, '$.doc.since') from input)
    order by a.finished_at desc limit (select json_extract(doc, '$.doc.most') from input)
)
select count(*), min(n.finished_at), max(n.finished_at) from newest as n;

-- name: problem_recipients
-- Served by recipient_disabled.
with input(doc) as (select ?)
select r.ref, r.disabled from duetime_recipient as r indexed by duetime_recipient_disabled
where r.disabled <> '[]'
order by r.ref limit (select json_extract(doc, '$.doc.most') from input);

-- name: problem_stale
-- How many subjects workers should have armed by then, counted up to a limit, and since when: those that are marked, and
-- those whose rows have changed. Served by subject_rearm and the key of the changes.
with input(doc) as (select ?), given as (
    select json_extract(doc, '$.doc.before') as before, json_extract(doc, '$.doc.most') as most from input
), marked as materialized (
    select s.rearm_at as at from duetime_subject as s
    where s.rearm_at <= (select before from given) order by s.rearm_at limit (select most from given)
), changed as materialized (
    select c.at from duetime_tracked_change as c
    where c.kind = 'subjects' and c.at <= (select before from given) limit (select most from given)
)
select min((select most from given), count(*)), min(n.at)
from (select at from marked union all select at from changed) as n;

-- name: problem_tables
-- How many rows of each cannot be used as they are. (Here triggers cannot fail in a way that is
-- recorded.) Served by subject_problem and tracked_scope_problem.
with input(doc) as (select ?), found as (
    select t.name, 'subject' as kind,
        (select count(*) from (select 1 from duetime_subject as s indexed by duetime_subject_problem
                               where s.tracked = t.name and s.problem is not null
                               limit (select json_extract(doc, '$.doc.most') from input))) as count,
        (select json_object('code', 'row_of_subject', 'facts',
                            json_object('subject', s.ref, 'why', json(s.problem)))
         from duetime_subject as s indexed by duetime_subject_problem
         where s.tracked = t.name and s.problem is not null limit 1) as example
    from duetime_tracked as t
    union all
    select t.name, 'scope',
        (select count(*) from (select 1 from duetime_tracked_scope as s
                               where s.track = t.name and s.problem is not null
                               limit (select json_extract(doc, '$.doc.most') from input))),
        (select json_object('code', 'row_of_scope', 'facts',
                            json_object('scope', s.ref, 'why', json(s.problem)))
         from duetime_tracked_scope as s where s.track = t.name and s.problem is not null limit 1)
    from duetime_tracked as t
)
select f.name, f.example, f.count from found as f where f.count > 0 order by f.name;
