-- Statements of recipients. Each takes one JSON document; those of the same name on SQLite take the
-- same, and give the same columns.

-- name: recipient_put
insert into duetime.recipient (ref, tz, channels, quiet, muted, max_per_hour, disabled)
select g.ref, g.tz, g.channels, g.quiet, g.muted, g.max_per_hour, g.disabled
from json_to_record(%s::json) as g(
    ref text, tz text, channels json, quiet text, muted json, max_per_hour integer, disabled json)
on conflict (ref) do update
    set (tz, channels, quiet, muted, max_per_hour, disabled, updated_at)
    = (excluded.tz, excluded.channels, excluded.quiet, excluded.muted, excluded.max_per_hour,
       excluded.disabled, duetime.now());

-- name: recipient_delete
with input as (
    select %s::json ->> 'ref' as ref
), unused as (
    delete from duetime.recipient_use where recipient = (select ref from input)
)
delete from duetime.recipient where ref = (select ref from input) returning ref;

-- name: recipient_list
-- By reference, those after one of them.
select p.ref, p.tz, p.channels::text, p.quiet, p.muted::text, p.max_per_hour, p.disabled::text
from json_to_record(%s::json) as g("after" text, "limit" integer)
cross join lateral (
    select * from duetime.recipient as p where p.ref > g."after" order by p.ref limit g."limit"
) as p
order by p.ref;

-- name: recipient_get
select p.ref, p.tz, p.channels::text, p.quiet, p.muted::text, p.max_per_hour, p.disabled::text
from duetime.recipient as p where p.ref = %s::json ->> 'ref';

-- name: recipient_lock
-- The transaction that admits a message holds the row: the count of the last hour is exact.
select p.ref, p.tz, p.channels::text, p.quiet, p.muted::text, p.max_per_hour, p.disabled::text
from duetime.recipient as p where p.ref = %s::json ->> 'ref' for update;

-- name: recipient_zones
select p.ref, p.tz from duetime.recipient as p
where p.tz is not null
  and p.ref = any (array(select value from json_array_elements_text(%s::json)));

-- name: recipient_share
-- Transactions that arm by the recipients' clocks share this lock, also for recipients that were not
-- put yet. In 64 parts, since locks are few.
select pg_try_advisory_xact_lock_shared(hashtext('duetime.recipient'), part.number)
from (select distinct abs(hashtext(g.value) %% 64) as number
      from json_array_elements_text(%s::json) as g order by number) as part;

-- name: subject_mark
-- A worker arms them again.
update duetime.subject as s set rearm_at = least(s.rearm_at, g.at)
from json_to_record(%s::json) as g(ids json, at timestamptz)
where s.id = any (array(select value::bigint from json_array_elements_text(g.ids)));

-- name: recipient_own
-- A change of a recipient's clock takes it exclusively.
select pg_advisory_xact_lock(hashtext('duetime.recipient'), abs(hashtext(%s::json ->> 'ref') %% 64));

-- name: recipient_subjects
-- The open subjects that remind a recipient by their own clock, some at a time.
select distinct r.subject_id
from json_to_record(%s::json) as g(ref text, after bigint)
join duetime.reminder as r
    on r.recipient = g.ref and r.recipient <> '' and r.status = 'armed' and r.subject_id > g.after
join duetime.subject as s on s.id = r.subject_id and s.status = 'open'
where exists (select from duetime.reminder as z join duetime.rule as u on u.id = z.rule
              where z.subject_id = r.subject_id and z.recipient = g.ref and u.zone = 'recipient')
order by r.subject_id limit 2000;

-- name: recipient_release
-- Reminders that are held for a recipient become due now, and are admitted again.
with input as materialized (
    select %s::json ->> 'ref' as ref
), held as materialized (
    select r.job_id from duetime.reminder as r
    where r.recipient = (select ref from input) and r.recipient <> '' and r.status = 'armed'
      and r.held is not null
    union all
    select d.job_id from duetime.digest as d where d.recipient = (select ref from input)
), moved as (
    update duetime.due as q set run_at = duetime.now()
    from held as h where q.job_id = h.job_id and q.run_at > duetime.now()
    returning q.queue, q.run_at
)
select count(duetime.wake(m.queue, m.run_at))
from (select queue, min(run_at) as run_at from moved group by queue order by queue) as m;

-- name: scope_around
-- Each of the scopes given, and all around it.
with recursive chain as (
    select s.ref as scope, s.ref, s.parent, 0 as level from duetime.scope as s
    where s.ref = any (array(select value from json_array_elements_text(%s::json)))
    union
    select c.scope, s.ref, s.parent, c.level + 1
    from duetime.scope as s join chain as c on s.ref = c.parent
    where c.level < 100
)
select c.scope, c.ref from chain as c;

-- name: admission_read
-- What the admission of reminders checks, in one read by keys.
select duetime.now(), p.ref, p.tz, p.channels::text, p.quiet, p.muted::text, p.max_per_hour,
    p.disabled::text, r.status, r.held, d.id, d.status, r.id, u.body::text
from duetime.reminder as r
join duetime.rule as u on u.id = r.rule
left join duetime.recipient as p on p.ref = r.recipient
left join duetime.digest as d on d.id = r.digest_id
where r.id = any (array(select value::bigint from json_array_elements_text(%s::json)));

-- name: admission_hold
-- Reminders wait, or (held is null) wait no longer.
update duetime.reminder as r
set run_at = coalesce(g.run_at, r.run_at), reason = coalesce(g.reason, r.reason), held = g.held,
    digest_id = g.digest
from json_to_recordset(%s::json) as g(
    id bigint, run_at timestamptz, reason json, held text, digest bigint)
where r.id = g.id and r.status = 'armed'
returning r.id;

-- name: admission_ended
-- How the attempt of a job under this token ended and why, if it did. Index: the primary key.
select a.outcome, json_build_object('code', a.error_code, 'facts', coalesce(a.facts, '{}'))::text
from json_to_record(%s::json) as g(job bigint, token bigint)
join duetime.attempt as a on a.job_id = g.job and a.token = g.token;

-- name: admission_wait
-- The jobs of reminders that wait return to `due` in the transaction that decides so: a change of what they
-- wait for comes before it, or finds them there. Each is fenced; returns those that wait. One that is to be
-- cancelled ends by its worker.
with given as materialized (
    select * from json_to_recordset(%s::json) as g(
        job bigint, token bigint, started bigint, finished bigint, after bigint, reason json)
), held as materialized (
    select c.token, c.worker_id, c.claimed_at, c.job_ids, c.attempts, c.cancelled
    from duetime.claim as c
    where c.token = any (array(select token from given)) order by c.token for share
), mine as materialized (
    select g.*, h.worker_id, h.claimed_at, u.attempt
    from held as h cross join lateral unnest(h.job_ids, h.attempts) as u(job_id, attempt)
    join given as g on g.token = h.token and g.job = u.job_id
    where not coalesce(g.job = any (h.cancelled), false)
), accepted as (
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                 started_at, finished_at, error_code, facts)
    select m.job, m.token, m.attempt, m.worker_id, 'snoozed', m.claimed_at,
        m.claimed_at + m.started * interval '1 microsecond',
        m.claimed_at + m.finished * interval '1 microsecond', m.reason ->> 'code', m.reason -> 'facts'
    from mine as m
    on conflict (job_id, token) do nothing
    returning job_id
)
select duetime._wait_again(
    array_agg(m.job), array_agg(duetime.now() + m.after * interval '1 microsecond'),
    array_agg(m.attempt - 1))
from mine as m where m.job in (select a.job_id from accepted as a)
having count(*) > 0;

-- name: use_read
-- How many messages a recipient got in the last hour; the oldest of as many as are allowed; and
-- which of those given are among them.
with input as materialized (
    select g.ref, g.whats, greatest(g.most, 1) as most, duetime.now() as now
    from json_to_record(%s::json) as g(ref text, whats json, most integer)
), used as materialized (
    select u.what, u.at from duetime.recipient_use as u cross join input as i
    where u.recipient = i.ref and u.at > i.now - interval '1 hour'
)
select i.now,
    (select count(*) from used),
    (select min(u.at) from (
        select u.at from used as u order by u.at desc limit (select most from input)) as u),
    (select coalesce(json_agg(w.value), '[]')::text from json_array_elements_text(i.whats) as w
     where w.value in (select u.what from used as u))
from input as i;

-- name: use_write
with input as materialized (
    select g.ref, array(select value from json_array_elements_text(g.whats)) as whats
    from json_to_record(%s::json) as g(ref text, whats json)
), old as (
    delete from duetime.recipient_use as u using input as i
    where u.recipient = i.ref and u.what <> all (i.whats)
      and u.at <= duetime.now() - interval '1 hour'
)
insert into duetime.recipient_use (recipient, what, at)
select i.ref, w.what, duetime.now() from input as i cross join lateral unnest(i.whats) as w(what)
on conflict (recipient, what) do update set at = excluded.at;

-- name: use_delete
delete from duetime.recipient_use as u using json_to_record(%s::json) as g(ref text, what text)
where u.recipient = g.ref and u.what = g.what;
