-- name: audit_write
insert into duetime.audit (actor, action, entity, before, after, reason)
select g.actor, g.action, g.entity, g.before, g.after, g.reason
from json_to_recordset(%s::json) as g(
    actor text, action text, entity text, before json, after json, reason text);

-- name: audit_find
-- Newest first. Served by audit_pkey.
select a.id, a.at, a.actor, a.action, a.entity, a.before::text, a.after::text, a.reason
from json_to_record(%s::json) as g(kind text, actor text, before_id bigint, "limit" integer)
cross join lateral (
    select * from duetime.audit as a
    where a.id < g.before_id and (g.kind is null or starts_with(a.entity, g.kind || ':'))
      and (g.actor is null or a.actor = g.actor)
    order by a.id desc limit g."limit"
) as a
order by a.id desc;

-- name: audit_of
-- Of one entity, newest first. Served by audit_entity.
select a.id, a.at, a.actor, a.action, a.entity, a.before::text, a.after::text, a.reason
from json_to_record(%s::json) as g(
    entity text, kind text, actor text, before_id bigint, "limit" integer)
cross join lateral (
    select * from duetime.audit as a
    where a.entity = g.entity and a.id < g.before_id
      and (g.kind is null or starts_with(a.entity, g.kind || ':'))
      and (g.actor is null or a.actor = g.actor)
    order by a.id desc limit g."limit"
) as a
order by a.id desc;

-- name: audit_prune
with old as (
    select id from duetime.audit
    where at < duetime.now() - (%s::json ->> 'age')::bigint * interval '1 microsecond' limit 1000
)
delete from duetime.audit where id in (select id from old) returning 1;
