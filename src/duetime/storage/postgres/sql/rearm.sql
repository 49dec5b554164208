-- Statements of `duetime.rearm`: subjects that are marked as stale. Index: subject_rearm.

-- name: rearm_ask
select duetime.ask_rearm((%s::json ->> 'at')::timestamptz);

-- name: rearm_stale
with input as materialized (
    select * from json_to_record(%s::json) as g(after bigint, most integer)
)
select s.id from duetime.subject as s
where s.rearm_at <= (select duetime.now()) and s.id > (select after from input)
order by s.id limit (select most from input);

-- name: rearm_scopes
select distinct s.scope from duetime.subject as s
where s.id = any (array(select value::bigint from json_array_elements_text(%s::json -> 'ids')))
  and s.scope is not null;

-- name: rearm_lock
-- What others have locked is left to them, or to a later look.
select s.id, s.rearm_at from duetime.subject as s cross join (select %s::json as doc) as i
where s.id = any (array(select value::bigint from json_array_elements_text(i.doc -> 'ids')))
  and s.rearm_at <= (select duetime.now())
  and (s.scope is null
       or s.scope = any (array(select value from json_array_elements_text(i.doc -> 'scopes'))))
order by s.id
for update of s skip locked;

-- name: rearm_clear
update duetime.subject set rearm_at = null
where id = any (array(select value::bigint from json_array_elements_text(%s::json)))
returning id, ref;

-- name: rearm_these
select duetime.rearm(array(select value::bigint from json_array_elements_text(g.ids)), g.why)
from json_to_record(%s::json) as g(ids json, why text);

-- name: rearm_below
select n.count, n.last
from json_to_record(%s::json) as g(ref text, after bigint, most integer, why text)
cross join duetime.rearm_below(g.ref, g.after, g.most, g.why) as n;
