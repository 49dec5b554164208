-- Statements of `duetime.rearm`: subjects that are marked as stale.

-- name: rearm_ask
with input(doc) as (select ?)
insert into duetime_rearm_job (run_at) select json_extract(doc, '$.doc.at') from input;

-- name: rearm_stale
with input(doc) as (select ?)
select s.id from duetime_subject as s cross join input as i
where s.rearm_at <= json_extract(i.doc, '$.now') and s.id > json_extract(i.doc, '$.doc.after')
order by s.id limit (select json_extract(doc, '$.doc.most') from input);

-- name: rearm_scopes
with input(doc) as (select ?)
select distinct s.scope from duetime_subject as s
where s.id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
  and s.scope is not null;

-- name: rearm_lock
-- One whose row has changed is put first.
with input(doc) as (select ?)
select s.id, s.rearm_at from input as i cross join duetime_subject as s
where s.id in (select e.value from json_each(i.doc, '$.doc.ids') as e)
  and s.rearm_at <= json_extract(i.doc, '$.now')
  and (s.scope is null
       or s.scope in (select e.value from json_each(i.doc, '$.doc.scopes') as e))
  and not exists (select 1 from duetime_tracked_change as c where c.ref = s.ref)
order by s.id;

-- name: rearm_clear
with input(doc) as (select ?)
update duetime_subject set rearm_at = null
where id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e)
returning id, ref;

-- name: drive_clock
insert into duetime_counter (name, value) select 'clock', :now where :now is not null
on conflict (name) do update set value = excluded.value;

-- name: free_clock
delete from duetime_counter where name = 'clock' and :now is null;
