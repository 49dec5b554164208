-- Statements of reminders. Each takes one JSON document, {"now": …, "doc": …}, whose second part
-- is the same as on PostgreSQL, and gives the same columns. What PostgreSQL does in one statement
-- goes on here in `…_2`, `…_3`; the rows are those of the last.

-- name: scope_put
with input(doc) as (select ?)
insert into duetime_scope (ref, parent, rules, locked, updated_at)
select json_extract(e.value, '$.ref'), json_extract(e.value, '$.parent'),
    json_extract(e.value, '$.rules'), json_extract(e.value, '$.locked'),
    json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc') as e
where true
on conflict (ref) do update set (parent, rules, locked, updated_at)
    = (excluded.parent, excluded.rules, excluded.locked, excluded.updated_at);

-- name: scope_take_over
-- The application has put a scope: if its row in a tracked table is gone, the scope neither goes with it nor follows it
-- when it comes back. A worker may not have followed the deletion yet.
with input(doc) as (select ?), gone(ref) as (
    select c.ref from input as i cross join duetime_tracked_change as c
    where c.ref = json_extract(i.doc, '$.doc.ref') and c.kind = 'scopes'
      and (c.row is null or json_valid(c.row) and not json_extract(c.row, '$.open'))
)
delete from duetime_tracked_scope as t
where t.ref = (select json_extract(doc, '$.doc.ref') from input)
  and (json_extract(t.problem, '$.code') = 'row_gone' or t.ref in (select ref from gone));

-- name: scope_take_over_2
with input(doc) as (select ?)
delete from duetime_tracked_change as c
where c.ref = (select json_extract(doc, '$.doc.ref') from input) and c.kind = 'scopes'
  and (c.row is null or json_valid(c.row) and not json_extract(c.row, '$.open'));

-- name: scope_turn
with input(doc) as (select ?)
select 1 from input;

-- name: scope_queue
with input(doc) as (select ?)
select 1 from input;

-- name: scope_own
with input(doc) as (select ?)
select 1 from input;

-- name: scope_lock
-- Scopes by name, and all around them.
with recursive input(doc) as (select ?), chain(ref, parent, level) as (
    select s.ref, s.parent, 0 from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_scope as s on s.ref = e.value
    union
    select s.ref, s.parent, c.level + 1 from chain as c cross join duetime_scope as s
        on s.ref = c.parent
    where c.level < 100
)
select s.ref, s.parent, s.rules, s.locked from duetime_scope as s
where s.ref in (select ref from chain) order by s.ref;

-- name: scope_levels
-- As `scope_lock`, for people: it shows what of a scope's row cannot be used.
with recursive input(doc) as (select ?), chain(ref, parent, rules, locked, level) as (
    select s.ref, s.parent, s.rules, s.locked, 0 from input as i
    cross join duetime_scope as s on s.ref = json_extract(i.doc, '$.doc.ref')
    union all
    select s.ref, s.parent, s.rules, s.locked, c.level + 1
    from chain as c cross join duetime_scope as s on s.ref = c.parent
    where c.level < 100
)
select c.ref, c.parent, c.rules, c.locked, t.problem
from chain as c left join duetime_tracked_scope as t on t.ref = c.ref;

-- name: scope_depth
-- How many levels of scopes are inside a scope.
with recursive input(doc) as (select ?), below(ref, level) as (
    select json_extract(doc, '$.doc.ref'), 0 from input
    union all
    select s.ref, b.level + 1 from below as b cross join duetime_scope as s on s.parent = b.ref
    where b.level < 100
)
select max(level) from below;

-- name: scope_list
-- By reference, those after one of them.
with input(doc) as (select ?)
select s.ref, s.parent, s.rules, s.locked from duetime_scope as s
where s.ref > (select json_extract(doc, '$.doc.after') from input)
order by s.ref limit (select coalesce(json_extract(doc, '$.doc.limit'), -1) from input);

-- name: scope_get
with input(doc) as (select ?)
select s.ref, s.parent, s.rules, s.locked from duetime_scope as s
where s.ref = (select json_extract(doc, '$.doc.ref') from input);

-- name: scope_delete
with input(doc) as (select ?)
delete from duetime_scope where ref = (select json_extract(doc, '$.doc.ref') from input)
returning ref;

-- name: scope_size
-- How many open subjects are in a scope and in all scopes inside it.
with recursive input(doc) as (select ?), below(ref) as (
    select json_extract(doc, '$.doc.ref') from input
    union
    select s.ref from below as b cross join duetime_scope as s on s.parent = b.ref
)
select count(*) from below as b cross join duetime_subject as s on s.scope = b.ref
where s.status = 'open';

-- name: subjects_below
-- The open subjects of a scope and of all scopes inside it.
with recursive input(doc) as (select ?), below(ref) as (
    select json_extract(doc, '$.doc.ref') from input
    union
    select s.ref from below as b cross join duetime_scope as s on s.parent = b.ref
)
select s.id from below as b cross join duetime_subject as s on s.scope = b.ref
where s.status = 'open' order by s.id;

-- name: subjects_mark
-- Have a worker arm the open subjects of a scope again, and of all scopes inside it. Under a revision of their
-- own from now on, whatever arms them: what comes back is armed again, beside what it was.
with recursive input(doc) as (select ?), below(ref) as (
    select json_extract(doc, '$.doc.ref') from input
    union
    select s.ref from below as b cross join duetime_scope as s on s.parent = b.ref
)
update duetime_subject
set rearm_at = min(coalesce(rearm_at, 9223372036854775807),
                   (select json_extract(doc, '$.doc.at') from input)),
    revision = revision + 1
where status = 'open' and scope in (select ref from below);

-- name: subject_lock
with input(doc) as (select ?)
select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules, s.data, s.recipients, s.revision,
    s.created_at, s.updated_at, s.repeats, s.planned_from, s.planned_until, null,
    s.rearm_at <= (select json_extract(doc, '$.now') from input) and s.status = 'open' and s.repeats is null
from duetime_subject as s
where s.id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e
               union
               select n.id from input as i cross join json_each(i.doc, '$.doc.refs') as e
               cross join duetime_subject as n on n.ref = e.value)
order by s.id;

-- name: subject_find
-- By the unique index of `ref`.
with input(doc) as (select ?)
select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules, s.data, s.recipients, s.revision,
    s.created_at, s.updated_at, s.repeats, s.planned_from, s.planned_until, s.problem,
    s.rearm_at <= json_extract(i.doc, '$.now')
from input as i
cross join (select distinct e.value as ref from input as i, json_each(i.doc, '$.doc.refs') as e) as e
cross join duetime_subject as s on s.ref = e.ref
order by s.due_at, s.ref limit 1000;

-- name: subject_list
-- Of one scope and of all inside it, or of none in particular; the next due first, then those that
-- are not due (or repeat). Each half is served by subject_due, from the last page's end on.
with recursive input(doc) as (select ?), given(scope, status, due_at, id, undue) as materialized (
    select json_extract(doc, '$.doc.scope'), json_extract(doc, '$.doc.status'),
        json_extract(doc, '$.doc.due_at'), json_extract(doc, '$.doc.id'),
        json_extract(doc, '$.doc.undue')
    from input
), below(ref) as (
    select g.scope from given as g
    union
    select s.ref from duetime_scope as s join below as b on s.parent = b.ref
), due(id) as (
    select s.id from given as g
    cross join duetime_subject as s indexed by duetime_subject_due
    where not g.undue and s.due_at >= coalesce(g.due_at, -9223372036854775808)
      and (s.due_at, s.id) > (coalesce(g.due_at, -9223372036854775808), g.id)
      and (g.scope is null or s.scope in (select b.ref from below as b))
      and (g.status is null or s.status = g.status)
    order by s.due_at, s.id limit (select json_extract(doc, '$.doc.limit') from input)
), never(id) as (
    select s.id from given as g
    cross join duetime_subject as s indexed by duetime_subject_due
    where s.due_at is null and s.id > iif(g.undue, g.id, 0)
      and (g.scope is null or s.scope in (select b.ref from below as b))
      and (g.status is null or s.status = g.status)
    order by s.id limit (select json_extract(doc, '$.doc.limit') from input)
)
select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules, s.data, s.recipients, s.revision,
    s.created_at, s.updated_at, s.repeats, s.planned_from, s.planned_until
from (select id from due union all select id from never) as n
cross join duetime_subject as s on s.id = n.id
order by s.due_at is null, s.due_at, s.id
limit (select json_extract(doc, '$.doc.limit') from input);

-- name: scope_used
-- What keeps a scope from being deleted: scopes and subjects inside it.
with input(ref) as (select json_extract(?, '$.doc.ref'))
select (select count(*) from duetime_scope as s where s.parent = i.ref),
    (select count(*) from duetime_subject as s where s.scope = i.ref)
from input as i;

-- name: subject_insert
with input(doc) as (select ?)
update duetime_counter set value = value + (select json_array_length(doc, '$.doc') from input)
where name = 'subject';

-- name: subject_insert_2
with input(doc) as (select ?)
insert into duetime_subject (id, ref, scope, due_at, tz, status, rules, data, recipients, repeats,
                             created_at, updated_at)
select (select value from duetime_counter where name = 'subject')
        - json_array_length(i.doc, '$.doc') + e.key + 1,
    json_extract(e.value, '$.ref'), json_extract(e.value, '$.scope'),
    json_extract(e.value, '$.due_at'), json_extract(e.value, '$.tz'),
    json_extract(e.value, '$.status'), json_extract(e.value, '$.rules'),
    json_extract(e.value, '$.data'), json_extract(e.value, '$.recipients'),
    json_extract(e.value, '$.repeats'), json_extract(i.doc, '$.now'), json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc') as e
where true
on conflict (ref) do nothing
returning ref, id;

-- name: subject_revise
with input(doc) as (select ?)
update duetime_subject set revision = revision + 1
where id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: subject_update
with input(doc) as (select ?), g as materialized (
    select e.value, json_extract(i.doc, '$.now') as now
    from input as i cross join json_each(i.doc, '$.doc') as e
)
update duetime_subject as s
set scope = json_extract(g.value, '$.scope'), due_at = json_extract(g.value, '$.due_at'),
    tz = json_extract(g.value, '$.tz'), status = json_extract(g.value, '$.status'),
    rules = json_extract(g.value, '$.rules'), data = json_extract(g.value, '$.data'),
    recipients = json_extract(g.value, '$.recipients'),
    repeats = json_extract(g.value, '$.repeats'),
    revision = json_extract(g.value, '$.revision'), updated_at = g.now
from g
where s.id = json_extract(g.value, '$.id');

-- name: subject_delete
with input(doc) as (select ?)
delete from duetime_delivery where reminder_id in (
    select r.id from duetime_reminder as r
    where r.subject_id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e));

-- name: subject_delete_2
with input(doc) as (select ?)
delete from duetime_reminder
where subject_id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: subject_delete_3
with input(doc) as (select ?)
delete from duetime_subject
where id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e);

-- name: reminder_of
-- What became of the reminders of subjects.
with input(doc) as (select ?)
select r.id, r.subject_id, r.due_at, u.name, r.time, r.recipient, r.status, r.job_id, u.body
from duetime_reminder as r cross join duetime_rule as u on u.id = r.rule
where r.subject_id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e)
  and r.status <> 'superseded' and r.status <> 'cancelled';

-- name: reminder_write
-- New reminders, each with its job.
with input(doc) as (select ?)
insert into duetime_rule (name, body)
select distinct json_extract(e.value, '$.rule.id'), json_extract(e.value, '$.rule')
from input as i cross join json_each(i.doc, '$.doc') as e
where true
on conflict (body) where retired_at is null do nothing;

-- name: reminder_write_2
with input(doc) as (select ?)
insert into duetime_reminder (id, key, subject_id, due_at, rule, time, recipient, revision,
                              run_at, status, reason, job_id, created_at, ended_at)
select (select value from duetime_counter where name = 'reminder') + e.key + 1,
    json_extract(e.value, '$.key'), json_extract(e.value, '$.subject_id'), json_extract(e.value, '$.due_at'),
    (select u.id from duetime_rule as u
     where u.body = json_extract(e.value, '$.rule') and u.retired_at is null),
    json_extract(e.value, '$.time'), json_extract(e.value, '$.recipient'),
    json_extract(e.value, '$.revision'), json_extract(e.value, '$.run_at'),
    json_extract(e.value, '$.status'), json_extract(e.value, '$.reason'),
    iif(json_extract(e.value, '$.run_at') is null, null,
        (select value from duetime_counter where name = 'job') + e.key + 1),
    json_extract(i.doc, '$.now'),
    iif(json_extract(e.value, '$.run_at') is null, json_extract(i.doc, '$.now'), null)
from input as i cross join json_each(i.doc, '$.doc') as e
where true
on conflict (subject_id, due_at, time, rule, revision, recipient) do nothing;

-- name: reminder_write_3
with input(doc) as (select ?)
insert into duetime_new_job (id, task, run_at, args, expires_at, created_at)
select r.job_id, json_extract(e.value, '$.task'), r.run_at, json_object('reminder', r.id),
    json_extract(e.value, '$.expires_at'),
    json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_reminder as r
    on r.id = (select value from duetime_counter where name = 'reminder') + e.key + 1
where r.job_id is not null;

-- name: reminder_write_4
with input(doc) as (select ?)
update duetime_counter
set value = value + (select json_array_length(doc, '$.doc') from input)
where name in ('job', 'reminder')
returning value;

-- name: reminder_options
-- Reminders that wait get other options. Their jobs expire by those, unless they have an expiry of their own: one
-- that was sent again on request. What is held is decided again, now.
with input(doc) as (select ?)
insert into duetime_rule (name, body)
select distinct json_extract(e.value, '$.rule.id'), json_extract(e.value, '$.rule')
from input as i cross join json_each(i.doc, '$.doc') as e
where true
on conflict (body) where retired_at is null do nothing;

-- name: reminder_options_2
with input(doc) as (select ?), g as materialized (
    select r.job_id, json_extract(e.value, '$.expired_at') as expired_at,
        json_extract(e.value, '$.expires_at') as expires_at
    from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_reminder as r on r.id = json_extract(e.value, '$.id') and r.status = 'armed'
)
update duetime_job as j set expires_at = (select g.expires_at from g where g.job_id = j.id)
where j.id in (select g.job_id from g)
  and exists (select 1 from g where g.job_id = j.id and g.expired_at is j.expires_at);

-- name: reminder_options_3
with input(doc) as (select ?)
update duetime_due set run_at = (select json_extract(doc, '$.now') from input)
where run_at > (select json_extract(doc, '$.now') from input)
  and job_id in (
    select r.job_id from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_reminder as r
        on r.id = json_extract(e.value, '$.id') and r.status = 'armed' and r.held is not null);

-- name: reminder_options_4
with input(doc) as (select ?), g as materialized (
    select json_extract(e.value, '$.id') as id, json_extract(e.value, '$.rule') as rule
    from input as i cross join json_each(i.doc, '$.doc') as e
)
update duetime_reminder as r
set rule = (select u.id from duetime_rule as u where u.body = g.rule and u.retired_at is null)
from g
where r.id = g.id and r.status = 'armed';

-- name: reminder_withdraw
-- Reminders that are no longer true end, with their jobs; one that is being sent is stopped by its
-- status, which its sender reads right before. One that was snoozed has been sent.
with input(doc) as (select ?)
insert into duetime_end_waiting (job_id, outcome, error_code, facts, at)
select r.job_id, 'superseded', json_extract(i.doc, '$.doc.reason.code'),
    json_extract(i.doc, '$.doc.reason.facts'), json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc.ids') as e
cross join duetime_reminder as r on r.id = e.value and r.status = 'armed';

-- name: reminder_withdraw_2
with input(doc) as (select ?)
update duetime_reminder
set status = iif(snoozes > 0, 'sent', (select json_extract(doc, '$.doc.status') from input)),
    reason = (select iif(snoozes > 0, json_object('code', 'sent_before', 'facts', json_object(
                             'why', json(json_extract(doc, '$.doc.reason')))),
                         json_extract(doc, '$.doc.reason')) from input),
    ended_at = (select json_extract(doc, '$.now') from input)
where status = 'armed'
  and id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e)
returning job_id;

-- What is read of reminders, by different ways to find them.

-- name: reminder_get
with input(doc) as (select ?)
select r.rearm_at <= json_extract(i.doc, '$.now'), r.*
from input as i cross join json_each(i.doc, '$.doc.ids') as e
cross join duetime_reminder_row as r on r.id = e.value
order by coalesce(r.run_at, r.time), r.id;

-- name: reminder_about
with input(doc) as (select ?)
select r.rearm_at <= json_extract(i.doc, '$.now'), r.*
from input as i cross join duetime_subject as s on s.ref = json_extract(i.doc, '$.doc.subject')
cross join duetime_reminder_row as r on r.subject_id = s.id
where (json_extract(i.doc, '$.doc.status') is null or r.status = json_extract(i.doc, '$.doc.status'))
  and (coalesce(r.run_at, r.time), r.id) > (
      coalesce(json_extract(i.doc, '$.doc.time'), -9223372036854775808),
      json_extract(i.doc, '$.doc.id'))
order by coalesce(r.run_at, r.time), r.id
limit (select json_extract(doc, '$.doc.limit') from input);

-- name: reminder_newest
-- Newest first: of one status that is rare (reminder_troubled), of another, or of all (the primary
-- key). Deliveries are read only for those that are shown.
with input(doc) as (select ?), given(status, before_id) as materialized (
    select json_extract(doc, '$.doc.status'), json_extract(doc, '$.doc.before_id') from input
), troubled as (
    select r.id from given as g
    cross join duetime_reminder as r indexed by duetime_reminder_troubled
    where g.status in ('failed', 'expired', 'skipped') and r.status = g.status
      and r.status in ('failed', 'expired', 'skipped') and r.id < g.before_id
    order by r.id desc limit (select json_extract(doc, '$.doc.limit') from input)
), other as (
    select r.id from given as g cross join duetime_reminder as r
    where (g.status is null or g.status not in ('failed', 'expired', 'skipped'))
      and (g.status is null or +r.status = g.status) and r.id < g.before_id
    order by r.id desc limit (select json_extract(doc, '$.doc.limit') from input)
)
select r.rearm_at <= json_extract(i.doc, '$.now'), r.*
from input as i
cross join (select id from troubled union all select id from other) as n
cross join duetime_reminder_row as r on r.id = n.id
order by r.id desc;

-- name: reminder_next
-- Those that are armed, up to `until`, in the order of their times (reminder_armed).
with input(doc) as (select ?), given(until, time, id) as materialized (
    select json_extract(doc, '$.doc.until'),
        coalesce(json_extract(doc, '$.doc.time'), -9223372036854775808),
        json_extract(doc, '$.doc.id')
    from input
), armed as (
    select r.id from given as g cross join duetime_reminder as r indexed by duetime_reminder_armed
    where r.status = 'armed' and r.run_at < coalesce(g.until, 9223372036854775807)
      and r.run_at >= g.time and (r.run_at, r.id) > (g.time, g.id)
    order by r.run_at, r.id limit (select json_extract(doc, '$.doc.limit') from input)
)
select r.rearm_at <= json_extract(i.doc, '$.now'), r.*
from input as i
cross join armed as a
cross join duetime_reminder_row as r on r.id = a.id
order by r.run_at, r.id;

-- name: reminder_record_unsent
-- How the jobs of reminders ended that were not recorded. One of which a receipt says that its
-- channel took it was sent.
with input(doc) as (select ?)
update duetime_reminder as r
set status = case when exists (select 1 from duetime_delivery as d
                               where d.reminder_id = r.id and d.round = r.snoozes
                                 and d.status in ('sent', 'delivered', 'acknowledged')) then 'sent'
                  when a.outcome = 'expired' then 'expired'
                  when a.outcome in ('completed', 'cancelled') then 'skipped'
                  else 'failed' end,
    reason = case
        when a.error_code is null and a.error is null then r.reason
        when a.outcome = 'dead' and a.error is not null then json_object('code', 'failed', 'facts',
            json_patch('{}', json_object('error_code', a.error_code, 'text', a.error)))
        else json_object('code', coalesce(a.error_code, a.outcome), 'facts',
            json_patch(json_patch('{}', json_object('text', a.error)), coalesce(a.facts, '{}'))) end,
    ended_at = a.finished_at
from duetime_job as j cross join duetime_attempt as a
where j.id in (select e.value from input as i cross join json_each(i.doc, '$.doc') as e)
  and r.id = json_extract(j.args, '$.reminder') and r.job_id = j.id
  and r.status = 'armed' and a.job_id = r.job_id
  and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
  and a.token = (select max(last.token) from duetime_attempt as last where last.job_id = r.job_id)
  and not exists (select 1 from duetime_due as d where d.job_id = r.job_id)
returning id, status,
    (select json_extract(u.body, '$.escalate_us') from duetime_rule as u where u.id = rule);

-- name: reminder_unrecorded
with input(doc) as (select ?)
select r.job_id from input as i cross join duetime_reminder as r
where r.status = 'armed' and r.run_at <= json_extract(i.doc, '$.now')
  and exists (select 1 from duetime_attempt as a
              where a.job_id = r.job_id
                and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired'))
  and not exists (select 1 from duetime_due as d where d.job_id = r.job_id)
limit 500;
