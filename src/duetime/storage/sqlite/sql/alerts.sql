-- What alerts read and record.

-- name: alert_open
with input(doc) as (select ?)
insert into duetime_alert (name, reported_until)
select e.value, json_extract(doc, '$.now') from input cross join json_each(doc, '$.doc') as e
where true
on conflict (name) do nothing;

-- name: alert_next
-- The alerts for which something has happened that was not reported, each with the time at which it is
-- to be sent: when the first event has settled, and the last message was sent long enough ago. One
-- probe of attempt_ended and of schedule_tick_missed for each. That a message of ours cannot be sent is
-- no event.
with input(doc) as (select ?), a as materialized (
    select json_extract(e.value, '$.name') as name, json_extract(e.value, '$.every') as every,
        json_extract(e.value, '$.jobs') as jobs, json_extract(e.value, '$.ticks') as ticks
    from input cross join json_each(doc, '$.doc.alerts') as e
), found as materialized (
    select l.name, coalesce(l.sent_at + a.every, 0) as again_at,
        case when a.jobs then (
            select t.finished_at from duetime_attempt as t
            where t.outcome = 'dead' and t.finished_at > l.reported_until
              and exists (
                select 1 from duetime_job as j where j.id = t.job_id and j.task <> 'duetime.alert')
            order by t.finished_at limit 1) end as died_at,
        case when a.ticks then (
            select o.finished_at from duetime_schedule_tick as o indexed by duetime_schedule_tick_missed
            where o.status in ('skipped', 'coalesced') and o.finished_at > l.reported_until
              and json_extract(o.reason, '$.code') in (
                select c.value from input cross join json_each(doc, '$.doc.codes') as c)
            order by o.finished_at limit 1) end as missed_at
    from a cross join duetime_alert as l on l.name = a.name
)
select f.name,
    max(f.again_at, json_extract(doc, '$.doc.settle')
        + min(coalesce(f.died_at, f.missed_at), coalesce(f.missed_at, f.died_at))),
    json_extract(doc, '$.now')
from input cross join found as f
where coalesce(f.died_at, f.missed_at) is not null;

-- name: alert_since
with input(doc) as (select ?)
select l.reported_until from input cross join duetime_alert as l
where l.name = json_extract(doc, '$.doc.name')
  and (l.sent_at is null
       or l.sent_at + json_extract(doc, '$.doc.every') <= json_extract(doc, '$.now'));

-- name: alert_dead_jobs
-- The jobs that died in this time, by task and error. Served by attempt_ended and the primary key.
with input(doc) as (select ?), died as materialized (
    select a.job_id, a.error_code from input cross join duetime_attempt as a
    where a.outcome = 'dead' and a.finished_at > json_extract(doc, '$.doc.since')
      and a.finished_at <= json_extract(doc, '$.doc.until')
    order by a.finished_at limit (select json_extract(doc, '$.doc.most') from input)
)
select j.task, d.error_code, count(*), max(d.job_id)
from died as d cross join duetime_job as j on j.id = d.job_id
where j.task <> 'duetime.alert'
group by j.task, d.error_code order by count(*) desc, j.task;

-- name: alert_missed_ticks
-- The ticks that were found missed in this time, by schedule and reason. Served by schedule_tick_missed.
with input(doc) as (select ?), missed as materialized (
    select o.schedule_id, o.tick, json_extract(o.reason, '$.code') as code
    from input cross join duetime_schedule_tick as o indexed by duetime_schedule_tick_missed
    where o.status in ('skipped', 'coalesced') and o.finished_at > json_extract(doc, '$.doc.since')
      and o.finished_at <= json_extract(doc, '$.doc.until')
      and json_extract(o.reason, '$.code') in (
        select c.value from json_each(doc, '$.doc.codes') as c)
    order by o.finished_at limit (select json_extract(doc, '$.doc.most') from input)
)
select s.name, m.code, count(*), max(m.tick)
from missed as m cross join duetime_schedule as s on s.id = m.schedule_id
group by s.name, m.code order by count(*) desc, s.name;

-- name: alert_reported
with input(doc) as (select ?)
update duetime_alert
set reported_until = (select json_extract(doc, '$.doc.until') from input),
    sent_at = (select json_extract(doc, '$.now') from input)
where name = (select json_extract(doc, '$.doc.name') from input)
  and reported_until < (select json_extract(doc, '$.doc.until') from input);
