-- name: audit_write
with input(doc) as (select ?)
insert into duetime_audit (id, at, actor, action, entity, before, after, reason)
select (select value from duetime_counter where name = 'audit') + e.key + 1,
    json_extract(i.doc, '$.now'), json_extract(e.value, '$.actor'),
    json_extract(e.value, '$.action'), json_extract(e.value, '$.entity'),
    json_extract(e.value, '$.before'), json_extract(e.value, '$.after'),
    json_extract(e.value, '$.reason')
from input as i cross join json_each(i.doc, '$.doc') as e;

-- name: audit_write_2
with input(doc) as (select ?)
update duetime_counter set value = value + (select json_array_length(doc, '$.doc') from input)
where name = 'audit';

-- name: audit_find
-- Newest first. Served by the primary key.
with input(doc) as (select ?), given(kind, actor, before_id) as materialized (
    select json_extract(doc, '$.doc.kind') || ':', json_extract(doc, '$.doc.actor'),
        json_extract(doc, '$.doc.before_id')
    from input
)
select a.id, a.at, a.actor, a.action, a.entity, a.before, a.after, a.reason
from given as g cross join duetime_audit as a
where a.id < g.before_id and (g.kind is null or substr(a.entity, 1, length(g.kind)) = g.kind)
  and (g.actor is null or a.actor = g.actor)
order by a.id desc limit (select json_extract(doc, '$.doc.limit') from input);

-- name: audit_of
-- Of one entity, newest first. Served by audit_entity.
with input(doc) as (select ?), given(entity, kind, actor, before_id) as materialized (
    select json_extract(doc, '$.doc.entity'), json_extract(doc, '$.doc.kind') || ':',
        json_extract(doc, '$.doc.actor'), json_extract(doc, '$.doc.before_id')
    from input
)
select a.id, a.at, a.actor, a.action, a.entity, a.before, a.after, a.reason
from given as g cross join duetime_audit as a indexed by duetime_audit_entity
where a.entity = g.entity and a.id < g.before_id
  and (g.kind is null or substr(a.entity, 1, length(g.kind)) = g.kind)
  and (g.actor is null or a.actor = g.actor)
order by a.id desc limit (select json_extract(doc, '$.doc.limit') from input);

-- name: audit_prune
with input(doc) as (select ?)
delete from duetime_audit where id in (
    select a.id from duetime_audit as a cross join input as i
    where a.at < json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.age') limit 1000)
returning 1;
