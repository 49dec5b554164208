-- Statements of accounts and secrets. Each takes one JSON document, {"now": …, "doc": …}, whose second
-- part is the same as on PostgreSQL, and gives the same columns.

-- name: account_add
with input(doc) as (select ?)
insert into duetime_account (name, role, hash, stamp, created_at, created_by, password_set_at)
select json_extract(doc, '$.doc.name'), json_extract(doc, '$.doc.role'),
    json_extract(doc, '$.doc.hash'), json_extract(doc, '$.doc.stamp'), json_extract(doc, '$.now'),
    json_extract(doc, '$.doc.by'), json_extract(doc, '$.now')
from input where true
on conflict (name) do nothing
returning name, role, created_at, created_by, password_set_at, disabled_at, disabled_by, last_login_at;

-- name: account_lock_admins
-- There is one writer at a time.
with input(doc) as (select ?)
select a.name from input as i cross join duetime_account as a
where a.role = 'admin' and a.disabled_at is null order by a.name;

-- name: account_lock
with input(doc) as (select ?)
select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at
from duetime_account as a where a.name = (select json_extract(doc, '$.doc.name') from input);

-- name: account_set_password
with input(doc) as (select ?)
update duetime_account
set hash = json_extract(i.doc, '$.doc.hash'), stamp = json_extract(i.doc, '$.doc.stamp'),
    password_set_at = json_extract(i.doc, '$.now')
from input as i where name = json_extract(i.doc, '$.doc.name')
returning name, role, created_at, created_by, password_set_at, disabled_at, disabled_by, last_login_at;

-- name: account_set_role
with input(doc) as (select ?)
update duetime_account
set role = json_extract(i.doc, '$.doc.role'), stamp = json_extract(i.doc, '$.doc.stamp')
from input as i where name = json_extract(i.doc, '$.doc.name')
returning name, role, created_at, created_by, password_set_at, disabled_at, disabled_by, last_login_at;

-- name: account_disable
with input(doc) as (select ?)
update duetime_account
set disabled_at = json_extract(i.doc, '$.now'), disabled_by = json_extract(i.doc, '$.doc.by'),
    stamp = json_extract(i.doc, '$.doc.stamp')
from input as i where name = json_extract(i.doc, '$.doc.name')
returning name, role, created_at, created_by, password_set_at, disabled_at, disabled_by, last_login_at;

-- name: account_enable
with input(doc) as (select ?)
update duetime_account
set disabled_at = null, disabled_by = null, stamp = json_extract(i.doc, '$.doc.stamp')
from input as i where name = json_extract(i.doc, '$.doc.name')
returning name, role, created_at, created_by, password_set_at, disabled_at, disabled_by, last_login_at;

-- name: account_delete
with input(doc) as (select ?)
delete from duetime_account where name = (select json_extract(doc, '$.doc.name') from input);

-- name: account_get
with input(doc) as (select ?)
select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at
from duetime_account as a where a.name = (select json_extract(doc, '$.doc.name') from input);

-- name: account_list
-- By name, those after one of them.
with input(doc) as (select ?)
select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at
from duetime_account as a
where a.name > (select json_extract(doc, '$.doc.after') from input) order by a.name
limit (select json_extract(doc, '$.doc.limit') from input);

-- name: account_password
with input(doc) as (select ?)
select a.name, a.role, a.created_at, a.created_by, a.password_set_at, a.disabled_at, a.disabled_by,
    a.last_login_at, a.hash, a.stamp
from duetime_account as a where a.name = (select json_extract(doc, '$.doc.name') from input);

-- name: account_rehash
with input(doc) as (select ?)
update duetime_account set hash = json_extract(i.doc, '$.doc.new')
from input as i
where name = json_extract(i.doc, '$.doc.name') and hash = json_extract(i.doc, '$.doc.old');

-- name: secret_add
-- The first one stays.
with input(doc) as (select ?)
insert into duetime_installation_secret (name, value, created_at)
select json_extract(doc, '$.doc.name'), json_extract(doc, '$.doc.value'), json_extract(doc, '$.now')
from input where true
on conflict (name) do nothing;

-- name: secret_get
with input(doc) as (select ?)
select s.value from duetime_installation_secret as s
where s.name = (select json_extract(doc, '$.doc.name') from input);
