-- Statements of the pruner: reminders that ended long ago. Each takes one JSON document,
-- {"now": …, "doc": …}, and gives the same columns as on PostgreSQL.

-- name: prune_look
-- Checks some old ones, by id: whether they ended long ago and cannot be armed again. That is so if
-- they were withdrawn; or if their time and due date are as old, unless the subject is open and
-- still due then. Of a subject that repeats, occurrences that were planned are not armed again.
with input(doc) as (select ?), page as (
    select r.id, r.status, r.due_at, r.time, r.ended_at, r.created_at, s.status as subject,
        s.repeats, s.due_at as subject_due, s.planned_until,
        json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.age') as before
    from input as i cross join duetime_reminder as r
    cross join duetime_subject as s on s.id = r.subject_id
    where r.id > json_extract(i.doc, '$.doc.after')
    order by r.id limit (select json_extract(doc, '$.doc.most') from input)
)
select p.id,
    p.status <> 'armed' and p.ended_at < p.before
    and (p.status in ('superseded', 'cancelled')
         or p.time < p.before and p.due_at < p.before
            and (p.subject <> 'open'
                 or p.repeats is null and p.subject_due is not p.due_at
                 or p.repeats is not null and p.due_at < p.planned_until))
from page as p where p.created_at < p.before order by p.id;

-- name: prune_reminders
with input(doc) as (select ?)
delete from duetime_delivery where reminder_id in (
    select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e);

-- name: prune_reminders_2
with input(doc) as (select ?)
delete from duetime_reminder
where id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
returning id;
