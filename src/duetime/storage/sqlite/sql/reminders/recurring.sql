-- Statements of subjects that repeat. Each takes one JSON document, {"now": …, "doc": …}, whose
-- second part is the same as on PostgreSQL, and gives the same columns.

-- name: reminder_since
-- What became of the reminders of occurrences since a due time; of older ones, what is still armed.
with input(doc) as (select ?)
select r.id, r.subject_id, r.due_at, u.name, r.time, r.recipient, r.status, r.job_id, u.body
from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_reminder as r on r.subject_id = json_extract(e.value, '$.id')
    and r.due_at >= json_extract(e.value, '$.since') - 34560000000000
    and (r.due_at >= json_extract(e.value, '$.since') or r.status = 'armed')
cross join duetime_rule as u on u.id = r.rule
where r.status <> 'superseded' and r.status <> 'cancelled';

-- name: subject_planned
-- How far the occurrences of subjects are armed, and when to arm more. `keep`: not after the time that they
-- are marked for already.
with input(doc) as (select ?), g as materialized (
    select e.value from input as i cross join json_each(i.doc, '$.doc') as e
)
update duetime_subject as s
set planned_from = json_extract(g.value, '$.planned_from'),
    planned_until = json_extract(g.value, '$.planned_until'),
    rearm_at = iif(json_extract(g.value, '$.keep') and s.rearm_at is not null,
                   min(s.rearm_at, coalesce(json_extract(g.value, '$.rearm_at'), s.rearm_at)),
                   json_extract(g.value, '$.rearm_at'))
from g
where s.id = json_extract(g.value, '$.id');

-- name: rearm_marked
-- Whether another subject is marked for the same time: then there is a job.
with input(doc) as (select ?)
select 1 from input as i
where exists (select 1 from duetime_subject as s
              where s.rearm_at = json_extract(i.doc, '$.doc.at')
                and s.id <> json_extract(i.doc, '$.doc.id'));

-- name: subject_page
-- Subjects by id, some at a time: those named; else the open ones, of a scope and all inside it.
with recursive input(doc) as (select ?), below(ref) as (
    select json_extract(doc, '$.doc.scope') from input
    where json_extract(doc, '$.doc.scope') is not null
    union
    select s.ref from below as b cross join duetime_scope as s on s.parent = b.ref
)
select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules, s.data, s.recipients, s.revision,
    s.created_at, s.updated_at, s.repeats, s.planned_from, s.planned_until
from input as i cross join duetime_subject as s
where s.id > json_extract(i.doc, '$.doc.after')
  and iif(json_extract(i.doc, '$.doc.refs') is not null,
          s.ref in (select e.value from json_each(i.doc, '$.doc.refs') as e),
          s.status = 'open' and (json_extract(i.doc, '$.doc.scope') is null
                                 or s.scope in (select ref from below)))
order by s.id limit 1000;
