-- Statements of tracked tables. Those with {places} are written for one table: `triggers.py` fills
-- the places, and they run without parameters.

-- name: track_patience
with input(doc) as (select ?)
select 1 from input;

-- name: track_table
-- A table, as it is spelled.
with input(doc) as (select ?)
select m.name, m.type from input as i cross join sqlite_schema as m
where m.type in ('table', 'view') and lower(m.name) = lower(json_extract(i.doc, '$.doc.table'))
  and m.name not like 'sqlite!_%' escape '!'
order by m.name <> json_extract(i.doc, '$.doc.table') limit 1;

-- name: track_columns
with input(doc) as (select ?)
select c.name, lower(c.type), c.pk
from input as i cross join pragma_table_xinfo(json_extract(i.doc, '$.doc.table')) as c
where c.hidden <> 1 order by c.cid;

-- name: track_keys
with input(doc) as (select ?)
select x.name, c.name
from input as i cross join pragma_index_list(json_extract(i.doc, '$.doc.table')) as x
cross join pragma_index_info(x.name) as c
where x."unique" = 1 and x.partial = 0;

-- name: tracked_put
with input(doc) as (select ?)
insert into duetime_audit (id, at, actor, action, entity, before, after)
select (select value from duetime_counter where name = 'audit') + 1, json_extract(i.doc, '$.now'),
    json_extract(i.doc, '$.doc.actor'), 'table.put',
    'table:' || json_extract(i.doc, '$.doc.name'),
    (select definition from duetime_tracked where name = json_extract(i.doc, '$.doc.name')),
    json_extract(i.doc, '$.doc.definition')
from input as i
where not exists (select 1 from duetime_tracked
                  where name = json_extract(i.doc, '$.doc.name')
                    and definition = json_extract(i.doc, '$.doc.definition'));

-- name: tracked_put_2
with input(doc) as (select ?)
update duetime_counter set value = (select coalesce(max(id), 0) from duetime_audit)
where name = 'audit' and value < (select coalesce(max(id), 0) from duetime_audit)
  and exists (select 1 from input);

-- name: tracked_put_3
with input(doc) as (select ?)
insert into duetime_tracked (name, table_name, definition, created_at, updated_at)
select json_extract(i.doc, '$.doc.name'), json_extract(i.doc, '$.doc.table'),
    json_extract(i.doc, '$.doc.definition'), json_extract(i.doc, '$.now'),
    json_extract(i.doc, '$.now')
from input as i
where true
on conflict (name) do update set (table_name, definition, updated_at)
    = (excluded.table_name, excluded.definition, excluded.updated_at);

-- name: tracked_forget
with input(doc) as (select ?)
insert into duetime_audit (id, at, actor, action, entity, before)
select (select value from duetime_counter where name = 'audit') + 1, json_extract(i.doc, '$.now'),
    json_extract(i.doc, '$.doc.actor'), 'table.delete', 'table:' || t.name, t.definition
from input as i cross join duetime_tracked as t on t.name = json_extract(i.doc, '$.doc.name');

-- name: tracked_forget_2
with input(doc) as (select ?)
update duetime_counter set value = (select coalesce(max(id), 0) from duetime_audit)
where name = 'audit' and value < (select coalesce(max(id), 0) from duetime_audit)
  and exists (select 1 from input);

-- name: tracked_forget_3
with input(doc) as (select ?)
delete from duetime_tracked_change
where track = (select json_extract(doc, '$.doc.name') from input);

-- name: tracked_forget_4
with input(doc) as (select ?)
delete from duetime_tracked where name = (select json_extract(doc, '$.doc.name') from input);

-- name: tracked_find
with input(doc) as (select ?)
select t.name, t.definition from input as i cross join duetime_tracked as t
where json_extract(i.doc, '$.doc.name') is null or t.name = json_extract(i.doc, '$.doc.name')
order by t.name;

-- name: tracked_look
with input(doc) as (select ?)
select t.name, t.definition, t.created_at,
    (select count(*) from duetime_subject as s where s.tracked = t.name),
    (select count(s.problem) from duetime_subject as s where s.tracked = t.name)
        + (select count(s.problem) from duetime_tracked_scope as s where s.track = t.name),
    coalesce(
        (select json_object('code', 'row_of_subject', 'facts',
                            json_object('subject', s.ref, 'why', json(s.problem)))
         from duetime_subject as s where s.tracked = t.name and s.problem is not null
         order by s.ref limit 1),
        (select json_object('code', 'row_of_scope', 'facts',
                            json_object('scope', s.ref, 'why', json(s.problem)))
         from duetime_tracked_scope as s where s.track = t.name and s.problem is not null
         order by s.ref limit 1)),
    (select count(*) from duetime_tracked_scope as s where s.track = t.name)
from input as i cross join duetime_tracked as t
where t.name > json_extract(i.doc, '$.doc.after')
  and (json_extract(i.doc, '$.doc.name') is null or t.name = json_extract(i.doc, '$.doc.name'))
order by t.name limit (select json_extract(doc, '$.doc.limit') from input);

-- name: tracked_changes
-- As bytes: they may not be UTF-8. Scopes come first, and up to 2,000 of them together: a parent and its child that
-- change places are followed if both are read.
with input(doc) as (select ?)
select cast(c.ref as blob), c.track, cast(c.row as blob), c.at from duetime_tracked_change as c
order by c.kind, c.ref limit (
    select max(json_extract(i.doc, '$.doc.most'), (
        select count(*) from (select 1 from duetime_tracked_change where kind = 'scopes' limit 2000)))
    from input as i);

-- name: tracked_marks
-- Since when subjects have been stale.
with input(doc) as (select ?)
select s.id, s.rearm_at from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_subject as s on s.ref = e.value
where s.rearm_at is not null;

-- name: tracked_subjects_write
-- Their reminders are true again.
with input(doc) as (select ?), g as materialized (
    select e.value from input as i cross join json_each(i.doc, '$.doc') as e
)
update duetime_subject as s
set rearm_at = null, tracked = json_extract(g.value, '$.track'),
    problem = json_extract(g.value, '$.problem')
from g
where s.ref = json_extract(g.value, '$.ref');

-- name: tracked_applied
-- What is closed has no reminders. Another mark that is left is not ours: a worker follows it.
with input(doc) as (select ?)
update duetime_subject set rearm_at = null
where rearm_at is not null and status <> 'open'
  and ref in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: tracked_applied_2
-- Those that `tracked_changes` returned in this transaction, whatever bytes their names are.
with input(doc) as (select ?)
delete from duetime_tracked_change
where ref in (select c.ref from duetime_tracked_change as c order by c.kind, c.ref
              limit (select json_array_length(doc, '$.doc') from input));

-- name: scope_make
with input(doc) as (select ?)
insert into duetime_scope (ref, updated_at)
select e.value, json_extract(i.doc, '$.now') from input as i cross join json_each(i.doc, '$.doc') as e
where not exists (select 1 from duetime_scope as s where s.ref = e.value)
returning ref;

-- name: tracked_scope_mark
-- Have a worker arm the open subjects of a scope again, and of all scopes inside it, as of a moment; under a
-- revision of their own, as in `subjects_mark`.
with recursive input(doc) as (select ?), below(ref) as (
    select json_extract(doc, '$.doc.ref') from input
    union
    select s.ref from below as b cross join duetime_scope as s on s.parent = b.ref
)
update duetime_subject
set rearm_at = (select min(coalesce(rearm_at, json_extract(doc, '$.doc.at')),
                           json_extract(doc, '$.doc.at')) from input),
    revision = revision + 1
where status = 'open' and scope in (select ref from below)
returning id;

-- name: tracked_scope_find
with input(doc) as (select ?)
select t.track, t.problem from duetime_tracked_scope as t
where t.ref = (select json_extract(doc, '$.doc.ref') from input);

-- name: tracked_scope_note
with input(doc) as (select ?)
insert into duetime_tracked_scope (ref, track, problem)
select json_extract(doc, '$.doc.ref'), json_extract(doc, '$.doc.track'),
    json_extract(doc, '$.doc.problem')
from input
where true
on conflict (ref) do update set (track, problem) = (excluded.track, excluded.problem);

-- name: tracked_scope_forget
with input(doc) as (select ?)
delete from duetime_tracked_scope where ref = (select json_extract(doc, '$.doc.ref') from input);

-- name: track_gone_scopes
-- Some scopes of a track.
with input(doc) as (select ?)
select t.ref from input as i cross join duetime_tracked_scope as t
where t.track = json_extract(i.doc, '$.doc.name')
order by t.ref limit (select json_extract(doc, '$.doc.most') from input);

-- name: track_gone
-- Some subjects of a track.
with input(doc) as (select ?)
select s.ref from input as i cross join duetime_subject as s
where s.tracked = json_extract(i.doc, '$.doc.name')
order by s.id limit (select json_extract(doc, '$.doc.most') from input);

-- name: track_triggers
with input(doc) as (select ?)
select m.name from input as i cross join sqlite_schema as m
where m.type = 'trigger'
  and m.name in (json_extract(i.doc, '$.doc.name') || '_insert',
                 json_extract(i.doc, '$.doc.name') || '_update',
                 json_extract(i.doc, '$.doc.name') || '_delete');

-- name: track_untrigger
drop trigger if exists "{trigger}";

-- name: track_count
select count(*) from {table};

-- name: track_check
select {ref}, {row}
from (select {names} from {table}) where (
    {when}
) limit 0;

-- name: track_trigger_insert
-- Here and below, rows are read as they are now: another trigger may have written to them since.
create trigger "{trigger}_insert" after insert on {table}
begin
    insert into duetime_tracked_row (track, ref, row, kind)
    select n.track, n.ref, n.row, {kind}
    from (select {name} as track, {ref} as ref, {row} as row, {open} as open
          from (select {names} from {table} where {is_new})) as n
    where n.ref is not null and n.open;
end;

-- name: track_trigger_update
create trigger "{trigger}_update" after update of {watched} on {table}
when {differs}
begin
    insert into duetime_tracked_row (track, ref, row, kind)
    select {name}, o.ref, null, {kind}
    from (select {ref} as ref from (select {old})) as o
    where o.ref is not null
      and o.ref is not (select {ref} from (select {names} from {table} where {is_old}));
    insert into duetime_tracked_row (track, ref, row, kind)
    select {name}, n.ref, n.row, {kind}
    from (select {ref} as ref, {row} as row
          from (select {names} from {table} where {is_new})) as n
    where n.ref is not null;
end;

-- name: track_trigger_delete
create trigger "{trigger}_delete" after delete on {table}
begin
    insert into duetime_tracked_row (track, ref, row, kind)
    select {name}, o.ref, null, {kind}
    from (select {ref} as ref from (select {old})) as o
    where o.ref is not null
      and o.ref is not (select {ref} from (select {names} from {table} where {is_old}));
end;

-- name: track_fill
insert into duetime_tracked_row (track, ref, row, kind)
select {name}, n.ref, n.row, {kind}
from (select {ref} as ref, {row} as row
      from (select {names} from {table} where {past} order by {keys} limit {most})) as n
where n.ref is not null;

-- name: track_fill_key
select {texts} from (select {keys} from {table} where {past} order by {keys} limit {most})
order by {keys};

-- name: track_missing
-- What is tracked and has no row: all of it, in one pass over both. Not what has a replacement character in its name:
-- its row may have other bytes there, which are not UTF-8.
with there(ref) as materialized (
    select n.ref from (select {ref} as ref from (select {names} from {table})) as n
    where n.ref is not null
)
select s.ref from duetime_subject as s
where s.tracked = {name} and s.ref not in (select ref from there)
  and instr(s.ref, char(65533)) = 0
union all
select t.ref from duetime_tracked_scope as t
where t.track = {name} and coalesce(json_extract(t.problem, '$.code'), '') <> 'row_gone'
  and t.ref not in (select ref from there) and instr(t.ref, char(65533)) = 0;

-- name: track_drop
-- As the trigger of a delete, for rows that are not there.
insert into duetime_tracked_row (track, ref, row, kind)
select {name}, g.value, null, {kind} from json_each({refs}) as g
where g.value not in (
    select n.ref from (select {ref} as ref from (select {names} from {table})) as n
    where n.ref is not null);
