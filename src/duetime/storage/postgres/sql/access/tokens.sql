-- Statements of API tokens. Each takes one JSON document; those of the same name on SQLite take the
-- same, and give the same columns. Only the hash of a token is stored, and no statement returns it.

-- name: token_retire
-- An expired token gives its name back: only tokens that are not revoked hold one.
update duetime.api_token as t set revoked_at = duetime.now(), revoked_by = g.by
from json_to_record(%s::json) as g(name text, by text)
where t.name = g.name and t.revoked_at is null and t.expires_at <= duetime.now()
returning t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by;

-- name: token_create
-- Of two at once with the same name, one gets no row.
insert into duetime.api_token as t (name, hash, scope, expires_at, created_by)
select g.name, g.hash, g.scope, duetime.now() + g.expires_in * interval '1 microsecond', g.by
from json_to_record(%s::json) as g(
    name text, hash text, scope text, expires_in bigint, by text)
on conflict (name) where revoked_at is null do nothing
returning t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by;

-- name: token_check
-- The token with that hash, unless it is revoked or expired; and whether its last use is to be
-- recorded. Index: api_token_hash.
with input as materialized (
    select * from json_to_record(%s::json) as g(hash text, touch_every bigint)
)
select t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by,
    coalesce(t.last_used_at <= duetime.now()
             - (select touch_every from input) * interval '1 microsecond', true)
from duetime.api_token as t
where t.hash = (select hash from input)
  and t.revoked_at is null and (t.expires_at is null or t.expires_at > duetime.now());

-- name: token_touch
-- Of many requests at once, one writes.
update duetime.api_token as t set last_used_at = duetime.now()
from json_to_record(%s::json) as g(id bigint, touch_every bigint)
where t.id = g.id and (t.last_used_at is null
    or t.last_used_at <= duetime.now() - g.touch_every * interval '1 microsecond');

-- name: token_revoke
update duetime.api_token as t set revoked_at = duetime.now(), revoked_by = g.by
from json_to_record(%s::json) as g(name text, by text)
where t.name = g.name and t.revoked_at is null
returning t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by;

-- name: token_latest
-- The one that is not revoked, else the newest.
select t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by
from duetime.api_token as t where t.name = %s::json ->> 'name'
order by t.revoked_at desc nulls first, t.id desc limit 1;

-- name: token_list
-- By name, those after one of them.
select t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by
from json_to_record(%s::json) as g(revoked boolean, name text, id bigint, "limit" integer)
cross join lateral (
    select t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
        t.revoked_at, t.revoked_by
    from duetime.api_token as t
    where (t.name, t.id) > (g.name, g.id) and (g.revoked or t.revoked_at is null)
    order by t.name, t.id limit g."limit"
) as t
order by t.name, t.id;

-- name: token_prune
with input as (
    select duetime.now() - (%s::json ->> 'age')::bigint * interval '1 microsecond' as before
)
delete from duetime.api_token as t using input as i
where least(t.revoked_at, t.expires_at) < i.before
returning 1;
