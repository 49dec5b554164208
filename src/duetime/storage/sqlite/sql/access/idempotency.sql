-- Statements of idempotency keys. Each takes one JSON document, {"now": …, "doc": …}, whose second part
-- is the same as on PostgreSQL, and gives the same columns.

-- name: idempotency_reserve
-- Reserves a key that is free, whose time is over, or whose holder has died. A key that another request
-- holds, or that has an answer, is left as it is.
with input(doc) as (select ?)
insert into duetime_idempotency as k (id, fingerprint, holder, held_until, expires_at)
select json_extract(doc, '$.doc.id'), json_extract(doc, '$.doc.fingerprint'),
    json_extract(doc, '$.doc.holder'), json_extract(doc, '$.now') + json_extract(doc, '$.doc.held'),
    json_extract(doc, '$.now') + json_extract(doc, '$.doc.kept')
from input where true
on conflict (id) do update
    set (fingerprint, holder, held_until, expires_at, status, headers, body)
    = (excluded.fingerprint, excluded.holder, excluded.held_until, excluded.expires_at, null, null,
       null)
    where k.expires_at <= (select json_extract(doc, '$.now') from input)
       or k.status is null and k.held_until <= (select json_extract(doc, '$.now') from input)
          and k.fingerprint = excluded.fingerprint
returning id;

-- name: idempotency_get
with input(doc) as (select ?)
select k.fingerprint, k.status, k.headers, k.body, k.held_until - json_extract(i.doc, '$.now')
from input as i cross join duetime_idempotency as k on k.id = json_extract(i.doc, '$.doc.id');

-- name: idempotency_finish
with input(doc) as (select ?)
update duetime_idempotency
set status = json_extract(i.doc, '$.doc.status'), headers = json_extract(i.doc, '$.doc.headers'),
    body = json_extract(i.doc, '$.doc.body')
from input as i
where id = json_extract(i.doc, '$.doc.id') and holder = json_extract(i.doc, '$.doc.holder')
  and status is null
returning id;

-- name: idempotency_release
with input(doc) as (select ?)
delete from duetime_idempotency
where id = (select json_extract(doc, '$.doc.id') from input)
  and holder = (select json_extract(doc, '$.doc.holder') from input) and status is null;

-- name: idempotency_prune
-- Index: idempotency_expires.
with input(doc) as (select ?)
delete from duetime_idempotency where id in (
    select k.id from duetime_idempotency as k
    where k.expires_at <= (select json_extract(doc, '$.now') from input)
    order by k.expires_at limit 1000)
returning 1;
