-- Statements of subjects that repeat. Each takes one JSON document; those of the same name on SQLite
-- take the same, and give the same columns.

-- name: reminder_since
-- What became of the reminders of occurrences since a due time; of older ones, what is still armed.
-- Index: the unique one of reminders.
-- `offset 0` keeps it a probe for each subject, also beside one that has millions of reminders.
select r.id, r.subject_id, r.due_at, u.name, r.time, r.recipient, r.status, r.job_id,
    u.body::text
from json_to_recordset(%s::json) as g(id bigint, since timestamptz)
cross join lateral (
    select * from duetime.reminder as r
    where r.subject_id = g.id and r.due_at >= g.since - interval '400 days'
      and (r.due_at >= g.since or r.status = 'armed')
    offset 0) as r
join duetime.rule as u on u.id = r.rule
where r.status <> 'superseded' and r.status <> 'cancelled';

-- name: subject_planned
-- How far the occurrences of subjects are armed, and when to arm more. `keep`: not after the time that they
-- are marked for already.
update duetime.subject as s
set planned_from = g.planned_from, planned_until = g.planned_until,
    rearm_at = case when g.keep then least(s.rearm_at, g.rearm_at) else g.rearm_at end
from json_to_recordset(%s::json) as g(
    id bigint, planned_from timestamptz, planned_until timestamptz, rearm_at timestamptz, keep boolean)
where s.id = g.id;

-- name: rearm_marked
-- Whether another subject is marked for the same time: then there is a job. Index: subject_rearm.
select 1 from json_to_record(%s::json) as g(at timestamptz, id bigint)
where exists (select from duetime.subject as s where s.rearm_at = g.at and s.id <> g.id);

-- name: subject_page
-- Subjects by id, some at a time: those named; else the open ones, of a scope and all inside it.
with recursive input as materialized (
    select * from json_to_record(%s::json) as g(refs json, scope text, after bigint)
), below as (
    select i.scope as ref from input as i where i.scope is not null
    union
    select s.ref from duetime.scope as s join below as b on s.parent = b.ref
)
select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules::text, s.data::text,
    s.recipients::text, s.revision, s.created_at, s.updated_at, s.repeats::text, s.planned_from,
    s.planned_until
from duetime.subject as s cross join input as i
where s.id > i.after
  and case when json_typeof(i.refs) = 'array'
           then s.ref = any (array(select value from json_array_elements_text(i.refs)))
           else s.status = 'open' and (i.scope is null or s.scope in (select ref from below)) end
order by s.id limit 1000;
