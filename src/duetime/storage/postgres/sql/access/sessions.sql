-- Statements of sessions and failed logins. Each takes one JSON document; those of the same name on
-- SQLite take the same, and give the same columns. No statement returns a hash.

-- name: login_count
-- Counts a failure in a bucket; returns how many there are, and the microseconds until they no longer
-- count. A full bucket is not kept full by those who go on trying.
insert into duetime.login_failure as f (bucket, count, until)
select g.bucket, 1, duetime.now() + g."window" * interval '1 microsecond'
from json_to_record(%s::json) as g(bucket integer, "window" bigint)
on conflict (bucket) do update
    set count = case when f.until <= duetime.now() then 1 else least(f.count + 1, 1000000) end,
        until = case when f.until <= duetime.now() then excluded.until else f.until end
returning f.count, (extract(epoch from f.until - duetime.now()) * 1000000)::bigint;

-- name: login_uncount
update duetime.login_failure as f set count = f.count - 1
where f.bucket = (%s::json ->> 'bucket')::integer and f.count > 0;

-- name: login_prune
delete from duetime.login_failure as f using (select %s::json) as g
where f.until <= duetime.now() returning 1;

-- name: session_start
-- Only if the account is as it was when the password was checked. A change of the account waits
-- for this, or this for it: the account's row is updated.
with input as materialized (
    select * from json_to_record(%s::json) as g(
        hash text, account text, stamp text, address text, lifetime bigint)
), account as (
    update duetime.account as a set last_login_at = duetime.now() from input as i
    where a.name = i.account and a.stamp = i.stamp and a.disabled_at is null
    returning a.name, a.role, a.stamp
), started as (
    insert into duetime.session as s (hash, account, stamp, address, expires_at)
    select i.hash, a.name, a.stamp, i.address, duetime.now() + i.lifetime * interval '1 microsecond'
    from input as i cross join account as a
    returning s.id, s.account, s.address, s.created_at, s.used_at, s.expires_at
)
select s.id, s.account, a.role, s.address, s.created_at, s.used_at, s.expires_at
from started as s cross join account as a;

-- name: session_check
-- The session with that hash, unless it is over or its account has changed; and whether its use is to
-- be recorded. Index: session_hash.
select s.id, s.account, a.role, s.address, s.created_at, s.used_at, s.expires_at,
    s.used_at <= duetime.now() - g.touch_every * interval '1 microsecond'
from json_to_record(%s::json) as g(hash text, idle bigint, touch_every bigint)
join duetime.session as s on s.hash = g.hash
join duetime.account as a on a.name = s.account and a.stamp = s.stamp and a.disabled_at is null
where s.expires_at > duetime.now()
  and s.used_at > duetime.now() - g.idle * interval '1 microsecond';

-- name: session_touch
-- Of many requests at once, one writes.
update duetime.session as s set used_at = duetime.now()
from json_to_record(%s::json) as g(id bigint, touch_every bigint)
where s.id = g.id and s.used_at <= duetime.now() - g.touch_every * interval '1 microsecond';

-- name: session_rotate
update duetime.session as s set hash = g.new
from json_to_record(%s::json) as g(hash text, new text) where s.hash = g.hash returning s.id;

-- name: session_end
delete from duetime.session as s where s.hash = %s::json ->> 'hash' returning s.id, s.account;

-- name: session_end_id
delete from duetime.session as s where s.id = (%s::json ->> 'id')::bigint
returning s.id, s.account;

-- name: session_end_all
delete from duetime.session as s where s.account = %s::json ->> 'account' returning s.id;

-- name: session_cap
-- The oldest sessions of an account that has too many.
with input as materialized (
    select * from json_to_record(%s::json) as g(account text, most integer)
)
delete from duetime.session as s where s.id in (
    select o.id from duetime.session as o where o.account = (select account from input)
    order by o.id desc offset (select most from input));

-- name: session_list
-- Of an account, newest first. Index: session_account.
select s.id, s.account, a.role, s.address, s.created_at, s.used_at, s.expires_at
from json_to_record(%s::json) as g(account text, idle bigint)
join duetime.session as s on s.account = g.account
join duetime.account as a on a.name = s.account and a.stamp = s.stamp and a.disabled_at is null
where s.expires_at > duetime.now()
  and s.used_at > duetime.now() - g.idle * interval '1 microsecond'
order by s.id desc;

-- name: session_prune
delete from duetime.session as s using json_to_record(%s::json) as g(idle bigint)
where s.expires_at <= duetime.now()
   or s.used_at <= duetime.now() - g.idle * interval '1 microsecond'
returning 1;
