-- Statements of accounts and secrets. Each takes one JSON document; those of the same name on SQLite
-- take the same, and give the same columns. Only account_password returns a hash.

-- name: account_add
-- Of two at once with the same name, one gets no row.
insert into duetime.account as a (name, role, hash, stamp, created_by)
select g.name, g.role, g.hash, g.stamp, g.by
from json_to_record(%s::json) as g(name text, role text, hash text, stamp text, by text)
on conflict (name) do nothing
returning a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at;

-- name: account_lock_admins
-- Changes that may take away the last admin wait for each other.
select a.name from (select %s::json) as g cross join duetime.account as a
where a.role = 'admin' and a.disabled_at is null order by a.name for update of a;

-- name: account_lock
select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at
from duetime.account as a where a.name = %s::json ->> 'name' for update;

-- name: account_set_password
update duetime.account as a set (hash, stamp, password_set_at) = (g.hash, g.stamp, duetime.now())
from json_to_record(%s::json) as g(name text, hash text, stamp text) where a.name = g.name
returning a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at;

-- name: account_set_role
update duetime.account as a set (role, stamp) = (g.role, g.stamp)
from json_to_record(%s::json) as g(name text, role text, stamp text) where a.name = g.name
returning a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at;

-- name: account_disable
update duetime.account as a set (disabled_at, disabled_by, stamp) = (duetime.now(), g.by, g.stamp)
from json_to_record(%s::json) as g(name text, by text, stamp text) where a.name = g.name
returning a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at;

-- name: account_enable
update duetime.account as a set (disabled_at, disabled_by, stamp) = (null, null, g.stamp)
from json_to_record(%s::json) as g(name text, stamp text) where a.name = g.name
returning a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at;

-- name: account_delete
delete from duetime.account where name = %s::json ->> 'name';

-- name: account_get
select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at
from duetime.account as a where a.name = %s::json ->> 'name';

-- name: account_list
-- By name, those after one of them.
select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at
from json_to_record(%s::json) as g("after" text, "limit" integer)
cross join lateral (
    select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at,
        a.disabled_by, a.last_login_at
    from duetime.account as a where a.name > g."after" order by a.name limit g."limit"
) as a
order by a.name;

-- name: account_password
select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at, a.hash, a.stamp
from duetime.account as a where a.name = %s::json ->> 'name';

-- name: account_rehash
update duetime.account as a set hash = g.new
from json_to_record(%s::json) as g(name text, old text, new text)
where a.name = g.name and a.hash = g.old;

-- name: secret_add
-- The first one stays.
insert into duetime.installation_secret (name, value)
select g.name, g.value from json_to_record(%s::json) as g(name text, value text)
on conflict (name) do nothing;

-- name: secret_get
select s.value from duetime.installation_secret as s where s.name = %s::json ->> 'name';
