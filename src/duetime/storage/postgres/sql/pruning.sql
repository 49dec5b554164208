-- Statements of the pruner: reminders that ended long ago, scopes whose rows are gone, and rules that no
-- reminder refers to.

-- name: prune_look
-- Checks some old ones, by id: whether they ended long ago and cannot be armed again. That is so if
-- they were withdrawn; or if their time and due date are as old, unless the subject is open and
-- still due then. Of a subject that repeats, occurrences that were planned are not armed again. Subjects
-- that are being changed are left for a later run. Index: the primary key.
with input as materialized (
    select g.after, g.most, duetime.now() - g.age * interval '1 microsecond' as before
    from json_to_record(%s::json) as g(after bigint, most integer, age bigint)
), page as materialized (
    select r.id, r.subject_id, r.status, r.due_at, r.time, r.ended_at, i.before
    from input as i cross join lateral (
        select * from duetime.reminder as r
        where r.id > i.after order by r.id limit i.most) as r
    where r.created_at < i.before
), old as materialized (
    select p.id from page as p join duetime.subject as s on s.id = p.subject_id
    where p.status <> 'armed' and p.ended_at < p.before
      and (p.status in ('superseded', 'cancelled')
           or p.time < p.before and p.due_at < p.before
              and (s.status <> 'open'
                   or s.repeats is null and s.due_at is distinct from p.due_at
                   or s.repeats is not null and p.due_at < s.planned_until))
    for no key update of s skip locked
)
select p.id, o.id is not null from page as p left join old as o on o.id = p.id order by p.id;

-- name: prune_reminders
-- Unless one was sent again meanwhile. Its deliveries go with it.
delete from duetime.reminder as r
using json_to_record(%s::json) as g(ids json, age bigint)
where r.id = any (array(select value::bigint from json_array_elements_text(g.ids)))
  and r.status <> 'armed'
  and r.ended_at < duetime.now() - g.age * interval '1 microsecond'
returning r.id;

-- name: prune_scopes_look
-- Some scopes whose rows in a tracked table are gone, that set nothing and have nothing inside. Indexes:
-- tracked_scope_problem, scope_parent, subject_scope.
select t.ref from duetime.tracked_scope as t join duetime.scope as s on s.ref = t.ref
where t.problem is not null and t.problem ->> 'code' = 'row_gone'
  and s.parent is null and s.rules is null and not s.locked
  and not exists (select from duetime.scope as c where c.parent = s.ref)
  -- In the order of the index: else the planner may prefer to read all subjects.
  and (select n.id from duetime.subject as n where n.scope = s.ref
       order by n.status, n.due_at limit 1) is null
  and %s::json is not null
order by t.ref limit 100;

-- name: prune_scopes
-- Those that no other transaction changes at the moment, if their rows are still gone.
select duetime._drop_gone_scopes(array(select value from json_array_elements_text(%s::json)));

-- name: prune_rules_begin
-- The last rule; how many there are, up to `most`; and when one was last retired.
select duetime.now(), (select max(u.id) from duetime.rule as u),
    (select count(*) from (select from duetime.rule limit g.most) as u),
    (select max(u.retired_at) from duetime.rule as u)
from json_to_record(%s::json) as g(most integer);

-- name: prune_rules_used
-- Of some reminders, by id: the last, how many, and the rules that they refer to. Index: the primary key.
with page as materialized (
    select r.id, r.rule from json_to_record(%s::json) as g(after bigint, most integer)
    cross join lateral (
        select r.id, r.rule from duetime.reminder as r
        where r.id > g.after order by r.id limit g.most) as r
)
select max(p.id), count(*), coalesce(json_agg(distinct p.rule), '[]')::text from page as p;

-- name: prune_rules
-- Some rules that were retired before a time, and that no reminder refers to.
with input as materialized (
    select * from json_to_record(%s::json) as g(used json, last integer, before timestamptz, most integer)
), used as materialized (
    select n.value::integer as id from input as i cross join json_array_elements_text(i.used) as n
)
delete from duetime.rule as u
where u.id in (
    select u.id from duetime.rule as u
    where u.id <= (select last from input) and u.retired_at < (select before from input)
      and not exists (select from used as n where n.id = u.id)
    order by u.id limit (select most from input))
returning u.id;

-- name: prune_rules_retire
-- Some rules that no reminder refers to are not used for new ones.
with input as materialized (
    select * from json_to_record(%s::json) as g(used json, last integer, most integer)
), used as materialized (
    select n.value::integer as id from input as i cross join json_array_elements_text(i.used) as n
)
update duetime.rule as u set retired_at = duetime.now()
where u.retired_at is null and u.id in (
    select u.id from duetime.rule as u
    where u.id <= (select last from input) and u.retired_at is null
      and not exists (select from used as n where n.id = u.id)
    order by u.id limit (select most from input))
returning u.id;
