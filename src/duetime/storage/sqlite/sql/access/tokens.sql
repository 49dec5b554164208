-- Statements of API tokens. Each takes one JSON document, {"now": …, "doc": …}, whose second part is
-- the same as on PostgreSQL, and gives the same columns.

-- name: token_retire
-- An expired token gives its name back: only tokens that are not revoked hold one.
with input(doc) as (select ?)
update duetime_api_token
set revoked_at = json_extract(i.doc, '$.now'), revoked_by = json_extract(i.doc, '$.doc.by')
from input as i
where name = json_extract(i.doc, '$.doc.name') and revoked_at is null
  and expires_at <= json_extract(i.doc, '$.now')
returning id, name, scope, expires_at, created_at, created_by, last_used_at, revoked_at, revoked_by;

-- name: token_create
with input(doc) as (select ?)
update duetime_counter set value = value + 1
where name = 'api_token' and exists (select 1 from input);

-- name: token_create_2
with input(doc) as (select ?)
insert into duetime_api_token (id, name, hash, scope, expires_at, created_at, created_by)
select (select value from duetime_counter where name = 'api_token'),
    json_extract(doc, '$.doc.name'), json_extract(doc, '$.doc.hash'),
    json_extract(doc, '$.doc.scope'),
    json_extract(doc, '$.now') + json_extract(doc, '$.doc.expires_in'), json_extract(doc, '$.now'),
    json_extract(doc, '$.doc.by')
from input where true
on conflict (name) where revoked_at is null do nothing
returning id, name, scope, expires_at, created_at, created_by, last_used_at, revoked_at, revoked_by;

-- name: token_check
-- The token with that hash, unless it is revoked or expired; and whether its last use is to be
-- recorded. Index: api_token_hash.
with input(doc) as (select ?), given(now, hash, touch_every) as materialized (
    select json_extract(doc, '$.now'), json_extract(doc, '$.doc.hash'),
        json_extract(doc, '$.doc.touch_every')
    from input
)
select t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by, coalesce(t.last_used_at <= g.now - g.touch_every, 1)
from given as g cross join duetime_api_token as t
where t.hash = g.hash and t.revoked_at is null and (t.expires_at is null or t.expires_at > g.now);

-- name: token_touch
with input(doc) as (select ?)
update duetime_api_token set last_used_at = json_extract(i.doc, '$.now')
from input as i
where id = json_extract(i.doc, '$.doc.id')
  and (last_used_at is null
       or last_used_at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.touch_every'));

-- name: token_revoke
with input(doc) as (select ?)
update duetime_api_token
set revoked_at = json_extract(i.doc, '$.now'), revoked_by = json_extract(i.doc, '$.doc.by')
from input as i
where name = json_extract(i.doc, '$.doc.name') and revoked_at is null
returning id, name, scope, expires_at, created_at, created_by, last_used_at, revoked_at, revoked_by;

-- name: token_latest
-- The one that is not revoked, else the newest.
with input(doc) as (select ?)
select t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by
from duetime_api_token as t where t.name = (select json_extract(doc, '$.doc.name') from input)
order by t.revoked_at desc nulls first, t.id desc limit 1;

-- name: token_list
-- By name, those after one of them.
with input(doc) as (select ?), given(revoked, name, id) as materialized (
    select json_extract(doc, '$.doc.revoked'), json_extract(doc, '$.doc.name'),
        json_extract(doc, '$.doc.id')
    from input
)
select t.id, t.name, t.scope, t.expires_at, t.created_at, t.created_by, t.last_used_at,
    t.revoked_at, t.revoked_by
from given as g cross join duetime_api_token as t
where (t.name, t.id) > (g.name, g.id) and (g.revoked or t.revoked_at is null)
order by t.name, t.id limit (select json_extract(doc, '$.doc.limit') from input);

-- name: token_prune
with input(doc) as (select ?), old(before) as (
    select json_extract(doc, '$.now') - json_extract(doc, '$.doc.age') from input
)
delete from duetime_api_token
where revoked_at < (select before from old) or expires_at < (select before from old)
returning 1;
