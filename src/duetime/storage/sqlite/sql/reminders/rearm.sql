-- Statements of `duetime.rearm`: subjects that are marked as stale.

-- name: rearm_ask
with input(doc) as (select ?)
insert into duetime_rearm_job (run_at) select json_extract(doc, '$.doc.at') from input;

-- name: rearm_stale
with input(doc) as (select ?)
select s.id from input as i cross join duetime_subject as s
where s.rearm_at <= json_extract(i.doc, '$.now') and s.id > json_extract(i.doc, '$.doc.after')
order by s.id limit (select json_extract(doc, '$.doc.most') from input);

-- name: rearm_nearest
-- Of those, the next that are due. Reads all that are marked: call it once.
with input(doc) as (select ?)
select s.id from input as i cross join duetime_subject as s indexed by duetime_subject_rearm
where s.rearm_at <= json_extract(i.doc, '$.now') and s.due_at >= json_extract(i.doc, '$.now')
order by s.due_at, s.id limit (select json_extract(doc, '$.doc.most') from input);

-- name: rearm_overdue
-- Whether a marked subject, or a changed row, is overdue to be armed.
with input(doc) as (select ?)
select 1 from input as i
where exists (select 1 from duetime_subject as s
              where s.rearm_at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.patience'))
   or exists (select 1 from duetime_tracked_change as c
              where c.at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.patience'));

-- name: reminders_check
-- Whether a repair may have something to do.
with input(doc) as (select ?)
select 1 from input as i
where exists (select 1 from duetime_reminder as r
              where r.status = 'armed' and r.run_at <= json_extract(i.doc, '$.now'))
   or exists (select 1 from duetime_digest as d where d.status = 'sending')
   or exists (select 1 from duetime_subject as s
              where s.rearm_at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.patience'))
   or exists (select 1 from duetime_tracked_change as c
              where c.at <= json_extract(i.doc, '$.now') - json_extract(i.doc, '$.doc.patience'));

-- name: scope_progress
-- The subjects of a scope, and of all inside it, that workers have yet to arm again.
with recursive input(doc) as (select ?), below(ref) as (
    select json_extract(doc, '$.doc.ref') from input
    union
    select s.ref from below as b cross join duetime_scope as s on s.parent = b.ref
)
select (select json_extract(doc, '$.doc.ref') from input), min(s.rearm_at), null, count(*)
from below as b cross join duetime_subject as s on s.scope = b.ref
where s.status = 'open' and s.repeats is null
  and s.rearm_at <= (select json_extract(doc, '$.now') from input)
having count(*) > 0;

-- name: rearm_turn
-- There is one writer at a time.
with input(doc) as (select ?)
select 1 from input;

-- name: rearm_alive
-- Jobs that will look at marks: in a worker's hands, or waiting in the lane in which they are asked
-- for, or in the one of suspects. One for a later time does not count, unless it is a retry.
with input(task, queue, now) as (
    select json_extract(g.doc, '$.doc.task'), coalesce(t.queue, (select queue from duetime_task_default)),
        json_extract(g.doc, '$.now')
    from (select ? as doc) as g
    left join duetime_task as t on t.name = json_extract(g.doc, '$.doc.remind')
)
select j.id from input as i cross join duetime_due as q
    on q.queue = i.queue and q.priority in (0, 10) and q.run_at <= i.now + 120000000
    and (q.run_at <= i.now + 1000000 or q.attempt > 0)
cross join duetime_job as j on j.id = q.job_id and j.task = i.task
union all
select j.id from input as i cross join duetime_claim as c
cross join duetime_job as j on j.id = c.job_id and j.task = i.task
union all
select k.job_id from input as i cross join duetime_parked as k on k.task = i.task
limit 1;

-- name: rearm_scopes
with input(doc) as (select ?)
select distinct s.scope from duetime_subject as s
where s.id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
  and s.scope is not null;

-- name: rearm_share
with input(doc) as (select ?)
select e.value from input as i cross join json_each(i.doc, '$.doc') as e;

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
