-- Statements of reminders. Each takes one JSON document; those of the same name on SQLite take the
-- same, and give the same columns.

-- name: scope_put
insert into duetime.scope (ref, parent, rules, locked)
select g.ref, g.parent, g.rules, g.locked
from json_to_recordset(%s::json) as g(ref text, parent text, rules json, locked boolean)
on conflict (ref) do update set (parent, rules, locked, updated_at)
    = (excluded.parent, excluded.rules, excluded.locked, duetime.now());

-- name: scope_take_over
-- The application has put a scope: if its row in a tracked table is gone, the scope neither goes with it nor follows it
-- when it comes back. Call `scope_lock` before: who follows rows and who prunes lock the scope first.
delete from duetime.tracked_scope as t
where t.ref = %s::json ->> 'ref' and t.problem ->> 'code' = 'row_gone';

-- name: scope_turn
-- One scope is put into another at a time: else two could get inside each other.
select pg_advisory_xact_lock(hashtext('duetime.scope')) where %s::json is not null;

-- name: scope_queue
-- Puts and changes of a scope take turns: a row's share locks alone would let puts overtake a
-- waiting change for ever.
with recursive chain as (
    select s.ref, s.parent, 0 as level from duetime.scope as s
    where s.ref = any (array(select value from json_array_elements_text(%s::json)))
    union
    select s.ref, s.parent, c.level + 1 from duetime.scope as s join chain as c on s.ref = c.parent
    where c.level < 100
)
select duetime._share_turn(array(select distinct ref from chain order by ref));

-- name: scope_own
select pg_advisory_xact_lock(hashtext('duetime.scope'), hashtext(%s::json ->> 'ref'));

-- name: scope_lock
-- Scopes by name, and all around them, outermost last in each chain. Changes of scopes wait for
-- one another; subjects read them.
with recursive chain as (
    select s.ref, s.parent, 0 as level from duetime.scope as s
    where s.ref = any (array(select value from json_array_elements_text(%s::json)))
    union
    select s.ref, s.parent, c.level + 1 from duetime.scope as s join chain as c on s.ref = c.parent
    where c.level < 100
)
select s.ref, s.parent, s.rules::text, s.locked from duetime.scope as s
where s.ref in (select ref from chain) order by s.ref for share of s;

-- name: scope_levels
-- As `scope_lock`, for people: it locks nothing, and shows what of a scope's row cannot be used.
with recursive chain as (
    select s.ref, s.parent, s.rules, s.locked, 0 as level from duetime.scope as s
    where s.ref = %s::json ->> 'ref'
    union all
    select s.ref, s.parent, s.rules, s.locked, c.level + 1
    from duetime.scope as s join chain as c on s.ref = c.parent
    where c.level < 100
)
select c.ref, c.parent, c.rules::text, c.locked, t.problem::text
from chain as c left join duetime.tracked_scope as t on t.ref = c.ref;

-- name: scope_depth
-- How many levels of scopes are inside a scope. Index: scope_parent.
with recursive below as (
    select %s::json ->> 'ref' as ref, 0 as level
    union all
    select s.ref, b.level + 1 from duetime.scope as s join below as b on s.parent = b.ref
    where b.level < 100
)
select max(b.level) from below as b;

-- name: scope_list
-- By reference, those after one of them.
select s.ref, s.parent, s.rules::text, s.locked
from json_to_record(%s::json) as g("after" text, "limit" integer)
cross join lateral (
    select * from duetime.scope as s where s.ref > g."after" order by s.ref limit g."limit"
) as s
order by s.ref;

-- name: scope_get
select s.ref, s.parent, s.rules::text, s.locked from duetime.scope as s
where s.ref = %s::json ->> 'ref';

-- name: scope_delete
delete from duetime.scope where ref = %s::json ->> 'ref' returning ref;

-- name: scope_size
-- How many open subjects are in a scope and in all scopes inside it. Index: subject_scope.
select count(*) from duetime.subject as s
where s.scope = any (duetime._scopes_below(%s::json ->> 'ref')) and s.status = 'open';

-- name: subjects_below
-- The open subjects of a scope and of all scopes inside it. Index: subject_scope.
select s.id from duetime.subject as s
where s.scope = any (duetime._scopes_below(%s::json ->> 'ref')) and s.status = 'open'
order by s.id;

-- name: subjects_mark
-- Have a worker arm the open subjects of a scope again, and of all scopes inside it.
update duetime.subject as s set rearm_at = least(s.rearm_at, g.at)
from json_to_record(%s::json) as g(ref text, at timestamptz)
where s.scope = any (duetime._scopes_below(g.ref)) and s.status = 'open';

-- name: subject_lock
select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules::text, s.data::text,
    s.recipients::text, s.revision, s.created_at, s.updated_at, s.repeats::text, s.planned_from,
    s.planned_until, null,
    -- A change may not have reached it yet.
    s.status = 'open' and s.repeats is null and (s.armed_under < 0
        or s.armed_under < (select max(c.id) from duetime.bulk_change as c where c.scope is not null))
from duetime.subject as s cross join (select %s::json as doc) as i
where s.id = any (array(select value::bigint from json_array_elements_text(i.doc -> 'ids')))
   or s.ref = any (array(select value from json_array_elements_text(i.doc -> 'refs')))
order by s.id
for update of s;

-- name: subject_find
-- Served by subject_ref_key.
select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules::text, s.data::text,
    s.recipients::text, s.revision, s.created_at, s.updated_at, s.repeats::text, s.planned_from,
    s.planned_until, s.problem::text,
    coalesce(s.rearm_at <= (select duetime.now()), false)
        or duetime._is_outdated(s.scope, s.armed_under)
from (select distinct e.ref
      from json_array_elements_text(%s::json -> 'refs') as e(ref)) as e
cross join lateral (select * from duetime.subject where subject.ref = e.ref offset 0) as s
order by s.due_at, s.ref limit 1000;

-- name: subject_list
-- Of one scope and of all inside it, or of none in particular; the next due first, then those that
-- are not due (or repeat). Each half is served by subject_due, from the last page's end on.
with recursive input as (
    select g.* from json_to_record(%s::json) as g(
        scope text, status text, due_at timestamptz, id bigint, undue boolean, "limit" integer)
), below as (
    select i.scope as ref from input as i
    union
    select s.ref from duetime.scope as s join below as b on s.parent = b.ref
)
select s.id, s.ref, s.scope, s.due_at, s.tz, s.status, s.rules::text, s.data::text,
    s.recipients::text, s.revision, s.created_at, s.updated_at, s.repeats::text, s.planned_from,
    s.planned_until
from input as i cross join lateral (
    (select s.* from duetime.subject as s
     where not i.undue and s.due_at is not null
       and (s.due_at, s.id) > (coalesce(i.due_at, '-infinity'), i.id)
       and (i.scope is null or s.scope in (select b.ref from below as b))
       and (i.status is null or s.status = i.status)
     order by s.due_at, s.id limit i."limit")
    union all
    (select s.* from duetime.subject as s
     where s.due_at is null and s.id > case when i.undue then i.id else 0 end
       and (i.scope is null or s.scope in (select b.ref from below as b))
       and (i.status is null or s.status = i.status)
     order by s.due_at, s.id limit i."limit")
) as s
order by s.due_at nulls last, s.id limit (select i."limit" from input as i);

-- name: scope_used
-- What keeps a scope from being deleted: scopes and subjects inside it.
select (select count(*) from duetime.scope as s where s.parent = g.ref),
    (select count(*) from duetime.subject as s where s.scope = g.ref)
from json_to_record(%s::json) as g(ref text);

-- name: subject_insert
insert into duetime.subject (ref, scope, due_at, tz, status, rules, data, recipients, repeats,
                             armed_under)
select g.ref, g.scope, g.due_at, g.tz, g.status, g.rules, g.data, g.recipients, g.repeats,
    coalesce(-g.change, (select duetime._changes_made()))
from json_to_recordset(%s::json) as g(
    ref text, scope text, due_at timestamptz, tz text, status text, rules json, data json,
    recipients json, repeats json, change bigint)
order by g.ref
on conflict (ref) do nothing
returning ref, id;

-- name: subject_revise
update duetime.subject
set revision = revision + 1, armed_under = (select duetime._changes_made())
where id = any (array(select value::bigint from json_array_elements_text(%s::json)));

-- name: subject_update
update duetime.subject as s
set scope = g.scope, due_at = g.due_at, tz = g.tz, status = g.status, rules = g.rules,
    data = g.data, recipients = g.recipients, repeats = g.repeats, revision = g.revision,
    -- Another revision is armed in this transaction, under the scopes that it has locked, or by workers.
    armed_under = case when s.revision = g.revision then s.armed_under
                       else coalesce(-g.change, (select duetime._changes_made())) end,
    updated_at = duetime.now()
from json_to_recordset(%s::json) as g(
    id bigint, scope text, due_at timestamptz, tz text, status text, rules json, data json,
    recipients json, repeats json, revision integer, change bigint)
where s.id = g.id;

-- name: subject_delete
with input as materialized (
    select array(select value::bigint from json_array_elements_text(%s::json)) as ids
), gone as (
    delete from duetime.reminder as r where r.subject_id = any ((select ids from input)::bigint[])
)
delete from duetime.subject as s where s.id = any ((select ids from input)::bigint[]);

-- name: reminder_of
-- What became of the reminders of subjects.
select r.id, r.subject_id, r.due_at, u.name, r.time, r.recipient, r.status, r.job_id,
    u.body::text
from duetime.reminder as r join duetime.rule as u on u.id = r.rule
where r.subject_id = any (array(select value::bigint from json_array_elements_text(%s::json)))
  and r.status <> 'superseded' and r.status <> 'cancelled';

-- name: reminder_write
-- New reminders, each with its job, in one statement.
with given as materialized (
    select g.*, nextval('duetime.reminder_id_seq') as id,
        case when g.run_at is not null then nextval('duetime.job_id_seq') end as job_id
    from json_to_recordset(%s::json) as g(
        subject_id bigint, due_at timestamptz, rule json, time timestamptz,
        recipient text, revision integer, run_at timestamptz, status text, reason json,
        key text, task text, expires_at timestamptz)
), rule as materialized (
    select u.body, duetime._rule_number(u.body::json) as number
    from (select distinct g.rule::text as body from given as g) as u
), fresh as (
    insert into duetime.reminder (id, key, subject_id, due_at, rule, time, recipient,
                                  revision, run_at, status, reason, job_id, ended_at)
    select g.id, substr(g.key, 5)::uuid, g.subject_id, g.due_at, u.number, g.time, g.recipient,
        g.revision, g.run_at, g.status, g.reason, g.job_id,
        case when g.job_id is null then duetime.now() end
    from given as g join rule as u on u.body = g.rule::text
    -- One that was withdrawn under this revision of its subject is not armed again.
    where not exists (
        select from duetime.reminder as o
        where o.subject_id = g.subject_id and o.due_at = g.due_at and o.time = g.time
          and o.rule = u.number and o.recipient = g.recipient and o.revision = g.revision)
    returning id, job_id
), made as materialized (
    select duetime._add_jobs(array_agg(duetime._new_job(
        g.job_id, g.task, g.run_at, json_build_object('reminder', g.id),
        expires_at => g.expires_at)))
    from fresh as f join given as g on g.id = f.id where f.job_id is not null
)
select f.id from made join fresh as f on true;

-- name: reminder_options
-- Reminders that wait get other options: see the function.
with given as materialized (
    select g.id, g.expired_at, g.expires_at, duetime._rule_number(g.rule) as rule
    from json_to_recordset(%s::json) as g(
        id bigint, rule json, expired_at timestamptz, expires_at timestamptz)
)
select duetime._set_options(array_agg(g.id), array_agg(g.rule), array_agg(g.expired_at),
                            array_agg(g.expires_at), duetime.now())
from given as g;

-- name: reminder_withdraw
-- Reminders that are no longer true end, with their jobs; one that is being sent is stopped by its
-- status, which its sender reads right before. One that was snoozed has been sent. The document
-- is read once, not for each row; and the status has a form that the index of all that is armed
-- does not serve.
with input as materialized (
    select g.status, g.reason,
        array(select value::bigint from json_array_elements_text(g.ids)) as ids
    from json_to_record(%s::json) as g(ids json, status text, reason json)
), gone as materialized (
    update duetime.reminder as r
    set status = case when r.snoozes > 0 then 'sent' else (select status from input) end,
        reason = case when r.snoozes > 0 then json_build_object('code', 'sent_before', 'facts',
                          json_build_object('why', (select reason from input)))
                      else (select reason from input) end,
        ended_at = duetime.now()
    where r.id = any ((select ids from input)::bigint[]) and coalesce(r.status, '') = 'armed'
    returning r.job_id
), ended as materialized (
    select duetime._end_waiting(array_agg(g.job_id), 'superseded', reasons => array_agg(i.reason))
    from gone as g cross join input as i
)
select g.job_id from gone as g cross join (select count(*) from ended) as e;

-- What is read of reminders, by different ways to find them.

-- name: reminder_get
-- By id: what every sender checks right before.
select coalesce(r.rearm_at <= (select duetime.now()), false)
        or duetime._is_outdated(r.scope, r.armed_under), r.* from duetime.reminder_row as r
where r.id = any (array(select value::bigint from json_array_elements_text(%s::json -> 'ids')))
order by coalesce(r.run_at, r.time), r.id;

-- name: reminder_about
-- Of one subject: by its reference, then the unique index of reminders.
with given as (
    select g.* from json_to_record(%s::json) as g(
        subject text, status text, "time" timestamptz, id bigint, "limit" integer)
)
select coalesce(r.rearm_at <= (select duetime.now()), false)
        or duetime._is_outdated(r.scope, r.armed_under), r.*
from given as g join duetime.reminder_row as r on r.subject = g.subject
where (g.status is null or r.status = g.status)
  and (coalesce(r.run_at, r.time), r.id) > (coalesce(g."time", '-infinity'), g.id)
order by coalesce(r.run_at, r.time), r.id limit (select "limit" from given);

-- name: reminder_newest
-- Newest first: of one status that is rare (reminder_troubled), of another, or of all
-- (reminder_pkey). Deliveries are read only for those that are shown.
select coalesce(r.rearm_at <= (select duetime.now()), false)
        or duetime._is_outdated(r.scope, r.armed_under), r.*
from (
    select n.id from json_to_record(%s::json) as g(status text, before_id bigint, "limit" integer)
    cross join lateral (
        (select r.id from duetime.reminder as r
         where g.status in ('failed', 'expired', 'skipped') and r.status = g.status
           and r.status in ('failed', 'expired', 'skipped') and r.id < g.before_id
         order by r.id desc limit g."limit")
        union all
        (select r.id from duetime.reminder as r
         where (g.status is null or g.status not in ('failed', 'expired', 'skipped'))
           and (g.status is null or r.status = g.status) and r.id < g.before_id
         order by r.id desc limit g."limit")
    ) as n
) as n
-- `offset 0`: row by row, however many the planner expects.
cross join lateral (select r.* from duetime.reminder_row as r where r.id = n.id offset 0) as r
order by r.id desc;

-- name: reminder_next
-- Those that are armed, up to `until`, in the order of their times (reminder_armed).
select coalesce(r.rearm_at <= (select duetime.now()), false)
        or duetime._is_outdated(r.scope, r.armed_under), r.*
from (
    select n.id from json_to_record(%s::json) as g(
        until timestamptz, "time" timestamptz, id bigint, "limit" integer)
    cross join lateral (
        select r.id from duetime.reminder as r
        where r.status = 'armed' and r.run_at < coalesce(g.until, 'infinity')
          and r.run_at >= coalesce(g."time", '-infinity')
          and (r.run_at, r.id) > (coalesce(g."time", '-infinity'), g.id)
        order by r.run_at, r.id limit g."limit"
    ) as n
) as n
-- `offset 0`: row by row, however many the planner expects.
cross join lateral (select r.* from duetime.reminder_row as r where r.id = n.id offset 0) as r
order by r.run_at, r.id;

-- name: reminder_record_unsent
-- How the jobs of reminders ended that were not recorded. One of which a receipt says that its
-- channel took it was sent. Indexes: the primary keys.
update duetime.reminder as r
set status = case when exists (select from duetime.delivery as d
                               where d.reminder_id = r.id and d.round = r.snoozes
                                 and d.status in ('sent', 'delivered', 'acknowledged')) then 'sent'
                  when a.outcome = 'expired' then 'expired'
                  when a.outcome in ('completed', 'cancelled') then 'skipped'
                  else 'failed' end,
    reason = coalesce(duetime._attempt_reason(a.outcome, a.error_code, a.error, a.facts), r.reason),
    ended_at = a.finished_at
from duetime.job as j join duetime.attempt as a on a.job_id = j.id
where j.id = any (array(select value::bigint from json_array_elements_text(%s::json)))
  and r.id = duetime._reminder_of(j) and r.job_id = j.id and coalesce(r.status, '') = 'armed'
  and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired')
  and not exists (select from duetime.attempt as b where b.job_id = a.job_id and b.token > a.token)
  and not exists (select from duetime.due as d where d.job_id = r.job_id)
returning r.id, r.status,
    (select u.escalate_us::text from duetime.rule as u where u.id = r.rule);

-- name: reminder_unrecorded
with past as materialized (
    select job_id from duetime.reminder
    where status = 'armed' and run_at <= (select duetime.now())
    order by run_at
)
select r.job_id from past as r
where true
  and exists (select from duetime.attempt as a
              where a.job_id = r.job_id
                and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired'))
  and not exists (select from duetime.due as d where d.job_id = r.job_id)
  and %s::json is not null
limit 500;
