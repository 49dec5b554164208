-- Statements of recipients. Each takes one JSON document, {"now": …, "doc": …}, whose second part
-- is the same as on PostgreSQL, and gives the same columns. What PostgreSQL does in one statement
-- goes on here in `…_2`, `…_3`; the rows are those of the last.

-- name: recipient_put
with input(doc) as (select ?)
insert into duetime_recipient (ref, tz, channels, quiet, muted, max_per_hour, disabled, updated_at)
select json_extract(doc, '$.doc.ref'), json_extract(doc, '$.doc.tz'),
    json_extract(doc, '$.doc.channels'), json_extract(doc, '$.doc.quiet'),
    json_extract(doc, '$.doc.muted'), json_extract(doc, '$.doc.max_per_hour'),
    json_extract(doc, '$.doc.disabled'), json_extract(doc, '$.now')
from input
where true
on conflict (ref) do update
    set (tz, channels, quiet, muted, max_per_hour, disabled, updated_at)
    = (excluded.tz, excluded.channels, excluded.quiet, excluded.muted, excluded.max_per_hour,
       excluded.disabled, excluded.updated_at);

-- name: recipient_delete
with input(doc) as (select ?)
delete from duetime_recipient_use
where recipient = (select json_extract(doc, '$.doc.ref') from input);

-- name: recipient_delete_2
with input(doc) as (select ?)
delete from duetime_recipient where ref = (select json_extract(doc, '$.doc.ref') from input)
returning ref;

-- name: recipient_list
-- By reference, those after one of them.
with input(doc) as (select ?)
select p.ref, p.tz, p.channels, p.quiet, p.muted, p.max_per_hour, p.disabled
from duetime_recipient as p
where p.ref > (select json_extract(doc, '$.doc.after') from input) order by p.ref
limit (select json_extract(doc, '$.doc.limit') from input);

-- name: recipient_get
with input(doc) as (select ?)
select p.ref, p.tz, p.channels, p.quiet, p.muted, p.max_per_hour, p.disabled
from duetime_recipient as p where p.ref = (select json_extract(doc, '$.doc.ref') from input);

-- name: recipient_lock
with input(doc) as (select ?)
select p.ref, p.tz, p.channels, p.quiet, p.muted, p.max_per_hour, p.disabled
from duetime_recipient as p where p.ref = (select json_extract(doc, '$.doc.ref') from input);

-- name: recipient_zones
with input(doc) as (select ?)
select p.ref, p.tz from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_recipient as p on p.ref = e.value
where p.tz is not null;

-- name: recipient_share
with input(doc) as (select ?)
select 1 from input;

-- name: subject_mark
with input(doc) as (select ?)
update duetime_subject
set rearm_at = min(coalesce(rearm_at, json_extract((select doc from input), '$.doc.at')),
                   json_extract((select doc from input), '$.doc.at'))
where id in (select e.value from input as i cross join json_each(i.doc, '$.doc.ids') as e);

-- name: recipient_own
with input(doc) as (select ?)
select 1 from input;

-- name: recipient_subjects
-- The open subjects that remind a recipient by their own clock, some at a time.
with input(doc) as (select ?)
select distinct r.subject_id
from input as i cross join duetime_reminder as r
    on r.recipient = json_extract(i.doc, '$.doc.ref') and r.status = 'armed'
cross join duetime_subject as s on s.id = r.subject_id and s.status = 'open'
where r.subject_id > json_extract(i.doc, '$.doc.after')
  and exists (select 1 from duetime_reminder as z cross join duetime_rule as u on u.id = z.rule
              where z.subject_id = r.subject_id and z.recipient = r.recipient
                and json_extract(u.body, '$.zone') = 'recipient')
order by r.subject_id limit 2000;

-- name: recipient_release
-- Reminders that are held for a recipient become due now, and are admitted again.
with input(doc) as (select ?)
update duetime_due set run_at = (select json_extract(doc, '$.now') from input)
where run_at > (select json_extract(doc, '$.now') from input)
  and job_id in (
    select r.job_id from input as i cross join duetime_reminder as r
        on r.recipient = json_extract(i.doc, '$.doc.ref') and r.status = 'armed'
    where r.held is not null
    union all
    select d.job_id from input as i cross join duetime_digest as d
        on d.recipient = json_extract(i.doc, '$.doc.ref'));

-- name: scope_around
-- Each of the scopes given, and all around it.
with recursive input(doc) as (select ?), chain(scope, ref, parent, level) as (
    select s.ref, s.ref, s.parent, 0 from input as i cross join json_each(i.doc, '$.doc') as e
    cross join duetime_scope as s on s.ref = e.value
    union
    select c.scope, s.ref, s.parent, c.level + 1
    from chain as c cross join duetime_scope as s on s.ref = c.parent
    where c.level < 100
)
select c.scope, c.ref from chain as c;

-- name: admission_read
-- What the admission of reminders checks, in one read by keys.
with input(doc) as (select ?)
select json_extract(i.doc, '$.now'), p.ref, p.tz, p.channels, p.quiet, p.muted, p.max_per_hour,
    p.disabled, r.status, r.held, d.id, d.status, r.id, u.body
from input as i cross join json_each(i.doc, '$.doc') as e
cross join duetime_reminder as r on r.id = e.value
cross join duetime_rule as u on u.id = r.rule
left join duetime_recipient as p on p.ref = r.recipient
left join duetime_digest as d on d.id = r.digest_id;

-- name: admission_hold
-- Reminders wait, or (held is null) wait no longer.
with input(doc) as (select ?), g as materialized (
    select e.value from input as i cross join json_each(i.doc, '$.doc') as e
)
update duetime_reminder as r
set run_at = coalesce(json_extract(g.value, '$.run_at'), r.run_at),
    reason = coalesce(json_extract(g.value, '$.reason'), r.reason),
    held = json_extract(g.value, '$.held'), digest_id = json_extract(g.value, '$.digest')
from g
where r.id = json_extract(g.value, '$.id') and r.status = 'armed'
returning id;

-- name: admission_ended
with input(doc) as (select ?)
select a.outcome, json_object('code', a.error_code, 'facts', json(coalesce(a.facts, '{}')))
from input as i cross join duetime_attempt as a
where a.job_id = json_extract(i.doc, '$.doc.job') and a.token = json_extract(i.doc, '$.doc.token');

-- name: admission_wait
-- The jobs of reminders that wait return to `due` in the transaction that decides so: a change of what they
-- wait for comes before it, or finds them there. Each is fenced; returns those that wait. One that is to be
-- cancelled ends by its worker.
with input(doc) as (select ?)
insert or ignore into duetime_attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                       started_at, finished_at, error_code, facts)
select c.job_id, c.token, c.attempt, c.worker_id, 'snoozed', c.claimed_at,
    c.claimed_at + json_extract(g.value, '$.started'),
    c.claimed_at + json_extract(g.value, '$.finished'),
    json_extract(g.value, '$.reason.code'), json_extract(g.value, '$.reason.facts')
from input as i cross join json_each(i.doc, '$.doc') as g cross join duetime_claim as c
    on c.job_id = json_extract(g.value, '$.job') and c.token = json_extract(g.value, '$.token')
where c.cancelled is null;

-- name: admission_wait_2
with input(doc) as (select ?)
insert into duetime_due (job_id, queue, priority, run_at, attempt, partition)
select j.id, j.queue, j.priority, json_extract(i.doc, '$.now') + json_extract(g.value, '$.after'),
    c.attempt - 1, j.partition
from input as i cross join json_each(i.doc, '$.doc') as g cross join duetime_claim as c
    on c.job_id = json_extract(g.value, '$.job') and c.token = json_extract(g.value, '$.token')
cross join duetime_attempt as a on a.job_id = c.job_id and a.token = c.token
cross join duetime_job as j on j.id = c.job_id;

-- name: admission_wait_3
with input(doc) as (select ?)
delete from duetime_claim as c
where (c.job_id, c.token) in (
    select json_extract(g.value, '$.job'), json_extract(g.value, '$.token')
    from input as i cross join json_each(i.doc, '$.doc') as g)
  and exists (select 1 from duetime_attempt as a where a.job_id = c.job_id and a.token = c.token)
returning job_id;

-- name: use_read
-- How many messages a recipient got in the last hour; the oldest of as many as are allowed; and
-- which of those given are among them.
with input(now, ref, whats, most) as materialized (
    select json_extract(d.doc, '$.now'), json_extract(d.doc, '$.doc.ref'),
        json_extract(d.doc, '$.doc.whats'), max(json_extract(d.doc, '$.doc.most'), 1)
    from (select ? as doc) as d
), used(what, at) as materialized (
    select use.what, use.at
    from input as i cross join duetime_recipient_use as use on use.recipient = i.ref
    where use.at > i.now - 3600000000
)
select i.now,
    (select count(*) from used),
    (select min(u.at) from (
        select at from used order by at desc limit (select most from input)) as u),
    (select json_group_array(w.value) from json_each(i.whats) as w
     where w.value in (select u.what from used as u))
from input as i;

-- name: use_write
with input(doc) as (select ?)
delete from duetime_recipient_use
where recipient = (select json_extract(doc, '$.doc.ref') from input)
  and at <= (select json_extract(doc, '$.now') from input) - 3600000000;

-- name: use_write_2
with input(doc) as (select ?)
insert into duetime_recipient_use (recipient, what, at)
select json_extract(i.doc, '$.doc.ref'), w.value, json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc.whats') as w
where true
on conflict (recipient, what) do update set at = excluded.at;

-- name: use_delete
with input(doc) as (select ?)
delete from duetime_recipient_use
where recipient = (select json_extract(doc, '$.doc.ref') from input)
  and what = (select json_extract(doc, '$.doc.what') from input);
