-- Statements that find what is wrong. Each reads a bounded number of rows along an index.

-- name: problem_queues
-- The limits of queues, and how much of their rates is used. Only queues that are paused or limited have
-- a row.
select q.name, q.running, q.per_partition, q.rate,
    (extract(epoch from q.period) * 1000000)::bigint,
    (select coalesce(sum(u.used), 0)::bigint from duetime.rate_use as u
     where u.queue = q.name and u.at > duetime.now() - q.period)
from (select %s::json as doc) as i cross join duetime.queue as q;

-- name: problem_schedules
-- Served by schedule_troubled.
select s.name, s.failures, s.broken::text, s.paused_at, s.paused_by, s.pause_reason, s.updated_at
from json_to_record(%s::json) as g(most integer)
cross join lateral (
    select * from duetime.schedule as s where s.failures > 0 or s.broken is not null
    order by s.id limit g.most) as s;

-- name: problem_reminders
-- Reminders that have failed since then, of the newest. Served by reminder_troubled and subject_pkey.
select r.id, r.reason::text, r.ended_at, r.recipient, s.ref
from json_to_record(%s::json) as g(since timestamptz, most integer)
cross join lateral (
    select * from duetime.reminder as r
    where r.status = 'failed' and r.status in ('failed', 'expired', 'skipped')
    order by r.id desc limit g.most) as r
cross join lateral (select s.ref from duetime.subject as s where s.id = r.subject_id offset 0) as s
where r.ended_at >= g.since;

-- name: problem_lost
-- Attempts that were lost since then, of the newest jobs. Served by attempt_troubled.
select count(*), min(a.finished_at), max(a.finished_at)
from json_to_record(%s::json) as g(since timestamptz, most integer)
cross join lateral (
    select a.finished_at from duetime.attempt as a
    where a.outcome = 'lost' and a.outcome <> 'completed'
    order by a.job_id desc limit g.most) as a
where a.finished_at >= g.since;

-- name: problem_recipients
-- Served by recipient_disabled.
select r.ref, r.disabled::text
from json_to_record(%s::json) as g(most integer)
cross join lateral (
    select * from duetime.recipient as r where json_array_length(r.disabled) > 0
    order by r.ref limit g.most) as r;

-- name: problem_stale
-- How many subjects workers should have armed by then, counted up to a limit, and since when. Changes and their parts are
-- few; the marks are served by subject_rearm, subjects below a scope by subject_scope.
with given as (
    select * from json_to_record(%s::json) as g("before" timestamptz, most integer)
), change as materialized (
    select c.* from given as g cross join duetime.bulk_change as c where c.at <= g."before"
)
select least(g.most, n.marked + n.listed + n.below), least(n.first_mark, n.first_change)
from given as g cross join lateral (
    select (select count(*) from (select from duetime.subject as s
                                  where s.rearm_at <= g."before" limit g.most) as s) as marked,
        (select coalesce(sum(cardinality(p.ids)), 0)
         from duetime.bulk_change_part as p join change as c on c.id = p.change_id) as listed,
        (select count(*) from (select from change as c
                               cross join lateral unnest(duetime._scopes_below(c.scope)) as b(ref)
                               join duetime.subject as s on s.scope = b.ref and s.status = 'open'
                               where c.total is null limit g.most) as s) as below,
        (select min(s.rearm_at) from duetime.subject as s where s.rearm_at <= g."before") as first_mark,
        (select min(c.at) from change as c) as first_change
) as n;

-- name: problem_tables
-- Tables that are not followed, and how many rows of each cannot be used as they are. There are few
-- tables; the rows are served by subject_problem and tracked_scope_problem.
with given as (
    select t.name, t.problem, g.most
    from json_to_record(%s::json) as g(most integer) cross join duetime.tracked as t
)
select g.name, g.problem::text, null from given as g where g.problem is not null
union all
select g.name, case n.kind when 'subject' then json_build_object('code', 'row_of_subject', 'facts',
        (select json_build_object('subject', s.ref, 'why', s.problem)
         from duetime.subject as s where s.ref = n.example))
    else json_build_object('code', 'row_of_scope', 'facts',
        (select json_build_object('scope', s.ref, 'why', s.problem)
         from duetime.tracked_scope as s where s.ref = n.example)) end::text, n.count
from given as g cross join lateral (
    select 'subject' as kind, count(*) as count, min(s.ref) as example
    from (select s.ref from duetime.subject as s
          where s.tracked = g.name and s.problem is not null limit g.most) as s
    union all
    select 'scope', count(*), min(s.ref)
    from (select s.ref from duetime.tracked_scope as s
          where s.track = g.name and s.problem is not null limit g.most) as s
) as n
where n.count > 0
order by 1;
