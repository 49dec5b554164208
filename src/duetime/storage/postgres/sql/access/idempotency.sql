-- Statements of idempotency keys. Each takes one JSON document; those of the same name on SQLite take
-- the same, and give the same columns.

-- name: idempotency_reserve
-- Reserves a key that is free, whose time is over, or whose holder has died. Of two at once, one gets no
-- row. A key that another request holds, or that has an answer, is left as it is.
insert into duetime.idempotency as k (id, fingerprint, holder, held_until, expires_at)
select g.id, g.fingerprint, g.holder, duetime.now() + g.held * interval '1 microsecond',
    duetime.now() + g.kept * interval '1 microsecond'
from json_to_record(%s::json) as g(
    id text, fingerprint text, holder text, held bigint, kept bigint)
on conflict (id) do update
    set (fingerprint, holder, held_until, expires_at, status, headers, body)
    = (excluded.fingerprint, excluded.holder, excluded.held_until, excluded.expires_at, null, null,
       null)
    where k.expires_at <= duetime.now()
       or k.status is null and k.held_until <= duetime.now()
          and k.fingerprint = excluded.fingerprint
returning k.id;

-- name: idempotency_get
select k.fingerprint, k.status, k.headers, k.body,
    (extract(epoch from k.held_until - duetime.now()) * 1000000)::bigint
from duetime.idempotency as k where k.id = %s::json ->> 'id';

-- name: idempotency_finish
update duetime.idempotency as k set (status, headers, body) = (g.status, g.headers, g.body)
from json_to_record(%s::json) as g(id text, holder text, status integer, headers text, body text)
where k.id = g.id and k.holder = g.holder and k.status is null
returning k.id;

-- name: idempotency_release
delete from duetime.idempotency as k
using json_to_record(%s::json) as g(id text, holder text)
where k.id = g.id and k.holder = g.holder and k.status is null;

-- name: idempotency_prune
-- Index: idempotency_expires.
with input as materialized (
    select %s::json, duetime.now() as now
), old as materialized (
    select k.id from duetime.idempotency as k
    where k.expires_at <= (select now from input) order by k.expires_at limit 1000
)
delete from duetime.idempotency where id = any (array(select id from old))
returning 1;
