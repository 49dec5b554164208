-- Statements of the pruner: reminders that ended long ago, scopes whose rows are gone, and rules that
-- no reminder refers to. Each takes one JSON document,
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

-- name: prune_scopes_look
-- Some scopes whose rows in a tracked table are gone, that set nothing and have nothing inside.
with input(doc) as (select ?)
select t.ref from input as i cross join duetime_tracked_scope as t
cross join duetime_scope as s on s.ref = t.ref
where json_extract(t.problem, '$.code') = 'row_gone'
  and s.parent is null and s.rules is null and not s.locked
  and not exists (select 1 from duetime_scope as c where c.parent = s.ref)
  and not exists (select 1 from duetime_subject as n where n.scope = s.ref)
order by t.ref limit 100;

-- name: prune_scopes
with input(doc) as (select ?)
delete from duetime_scope as s
where s.ref in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e)
  and s.parent is null and s.rules is null and not s.locked
  and exists (select 1 from duetime_tracked_scope as t
              where t.ref = s.ref and json_extract(t.problem, '$.code') = 'row_gone')
  and not exists (select 1 from duetime_scope as c where c.parent = s.ref)
  and not exists (select 1 from duetime_subject as n where n.scope = s.ref);

-- name: prune_scopes_2
with input(doc) as (select ?)
delete from duetime_tracked_scope as t
where t.ref in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e)
  and not exists (select 1 from duetime_scope as s where s.ref = t.ref);

-- name: prune_rules_begin
-- The last rule; how many there are, up to `most`; and when one was last retired.
with input(doc) as (select ?)
select json_extract(i.doc, '$.now'), (select max(u.id) from duetime_rule as u),
    (select count(*) from (
        select 1 from duetime_rule limit (select json_extract(doc, '$.doc.most') from input))),
    (select max(u.retired_at) from duetime_rule as u)
from input as i;

-- name: prune_rules_used
-- Of some reminders, by id: the last, how many, and the rules that they refer to.
with input(doc) as (select ?), page as materialized (
    select r.id, r.rule from duetime_reminder as r
    where r.id > (select json_extract(doc, '$.doc.after') from input)
    order by r.id limit (select json_extract(doc, '$.doc.most') from input)
)
select max(p.id), count(*), json_group_array(distinct p.rule) from page as p;

-- name: prune_rules
-- Some rules that were retired before a time, and that no reminder refers to.
with input(doc) as (select ?)
delete from duetime_rule
where id in (
    select u.id from duetime_rule as u
    where u.id <= (select json_extract(doc, '$.doc.last') from input)
      and u.retired_at < (select json_extract(doc, '$.doc.before') from input)
      and u.id not in (select e.value from json_each((select doc from input), '$.doc.used') as e)
    order by u.id limit (select json_extract(doc, '$.doc.most') from input))
returning id;

-- name: prune_rules_retire
-- Some rules that no reminder refers to are not used for new ones.
with input(doc) as (select ?)
update duetime_rule set retired_at = (select json_extract(doc, '$.now') from input)
where id in (
    select u.id from duetime_rule as u
    where u.id <= (select json_extract(doc, '$.doc.last') from input) and u.retired_at is null
      and u.id not in (select e.value from json_each((select doc from input), '$.doc.used') as e)
    order by u.id limit (select json_extract(doc, '$.doc.most') from input))
returning id;
