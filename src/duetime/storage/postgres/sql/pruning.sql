-- Statements of the pruner: reminders that ended long ago.

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
