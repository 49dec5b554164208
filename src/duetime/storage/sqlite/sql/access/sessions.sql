-- Statements of sessions and failed logins. Each takes one JSON document, {"now": …, "doc": …}, whose
-- second part is the same as on PostgreSQL, and gives the same columns.

-- name: login_count
-- Counts a failure in a bucket; returns how many there are, and the microseconds until they no longer
-- count. A full bucket is not kept full by those who go on trying.
with input(doc) as (select ?)
insert into duetime_login_failure as f (bucket, count, until)
select json_extract(doc, '$.doc.bucket'), 1, json_extract(doc, '$.now') + json_extract(doc, '$.doc.window')
from input where true
on conflict (bucket) do update
    set count = case when f.until <= (select json_extract(doc, '$.now') from input) then 1
                     else min(f.count + 1, 1000000) end,
        until = case when f.until <= (select json_extract(doc, '$.now') from input)
                     then excluded.until else f.until end
returning count, until - (select json_extract(doc, '$.now') from input);

-- name: login_uncount
with input(doc) as (select ?)
update duetime_login_failure set count = count - 1
where bucket = (select json_extract(doc, '$.doc.bucket') from input) and count > 0;

-- name: login_prune
with input(doc) as (select ?)
delete from duetime_login_failure where until <= (select json_extract(doc, '$.now') from input)
returning 1;

-- name: session_start
-- Only if the account is as it was when the password was checked.
with input(doc) as (select ?)
update duetime_account set last_login_at = json_extract(i.doc, '$.now')
from input as i
where name = json_extract(i.doc, '$.doc.account') and stamp = json_extract(i.doc, '$.doc.stamp')
  and disabled_at is null;

-- name: session_start_2
with input(doc) as (select ?)
update duetime_counter set value = value + 1
where name = 'session' and exists (select 1 from input);

-- name: session_start_3
with input(doc) as (select ?)
insert into duetime_session (id, hash, account, stamp, address, created_at, used_at, expires_at)
select (select value from duetime_counter where name = 'session'),
    json_extract(i.doc, '$.doc.hash'), a.name, a.stamp, json_extract(i.doc, '$.doc.address'),
    json_extract(i.doc, '$.now'), json_extract(i.doc, '$.now'),
    json_extract(i.doc, '$.now') + json_extract(i.doc, '$.doc.lifetime')
from input as i cross join duetime_account as a
where a.name = json_extract(i.doc, '$.doc.account') and a.stamp = json_extract(i.doc, '$.doc.stamp')
  and a.disabled_at is null
returning id, account, (select a.role from duetime_account as a where a.name = account), address,
    created_at, used_at, expires_at;

-- name: session_check
-- The session with that hash, unless it is over or its account has changed; and whether its use is to
-- be recorded. Index: session_hash.
with input(doc) as (select ?), given(now, hash, idle, touch_every) as materialized (
    select json_extract(doc, '$.now'), json_extract(doc, '$.doc.hash'),
        json_extract(doc, '$.doc.idle'), json_extract(doc, '$.doc.touch_every')
    from input
)
select s.id, s.account, a.role, s.address, s.created_at, s.used_at, s.expires_at,
    s.used_at <= g.now - g.touch_every
from given as g cross join duetime_session as s on s.hash = g.hash
cross join duetime_account as a on a.name = s.account and a.stamp = s.stamp
where a.disabled_at is null and s.expires_at > g.now and s.used_at > g.now - g.idle;

-- name: session_touch
with input(doc) as (select ?)
update duetime_session set used_at = json_extract(i.doc, '$.now')
from input as i
where id = json_extract(i.doc, '$.doc.id')
  and used_at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.touch_every');

-- name: session_rotate
with input(doc) as (select ?)
update duetime_session set hash = json_extract(i.doc, '$.doc.new')
from input as i where hash = json_extract(i.doc, '$.doc.hash') returning id;

-- name: session_end
with input(doc) as (select ?)
delete from duetime_session where hash = (select json_extract(doc, '$.doc.hash') from input)
returning id, account;

-- name: session_end_id
with input(doc) as (select ?)
delete from duetime_session where id = (select json_extract(doc, '$.doc.id') from input)
returning id, account;

-- name: session_end_all
with input(doc) as (select ?)
delete from duetime_session where account = (select json_extract(doc, '$.doc.account') from input)
returning id;

-- name: session_cap
-- The oldest sessions of an account that has too many.
with input(doc) as (select ?)
delete from duetime_session where id in (
    select o.id from duetime_session as o
    where o.account = (select json_extract(doc, '$.doc.account') from input)
    order by o.id desc limit -1 offset (select json_extract(doc, '$.doc.most') from input));

-- name: session_list
-- Of an account, newest first. Index: session_account.
with input(doc) as (select ?), given(now, account, idle) as materialized (
    select json_extract(doc, '$.now'), json_extract(doc, '$.doc.account'),
        json_extract(doc, '$.doc.idle')
    from input
)
select s.id, s.account, a.role, s.address, s.created_at, s.used_at, s.expires_at
from given as g cross join duetime_session as s on s.account = g.account
cross join duetime_account as a on a.name = s.account and a.stamp = s.stamp
where a.disabled_at is null and s.expires_at > g.now and s.used_at > g.now - g.idle
order by s.id desc;

-- name: session_prune
with input(doc) as (select ?), given(now, idle) as (
    select json_extract(doc, '$.now'), json_extract(doc, '$.doc.idle') from input
)
delete from duetime_session
where expires_at <= (select now from given) or used_at <= (select now - idle from given)
returning 1;
