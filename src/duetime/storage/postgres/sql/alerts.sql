-- What alerts read and record.

-- name: alert_open
insert into duetime.alert (name, reported_until)
select e.name, duetime.now() from json_array_elements_text(%s::json) as e(name)
on conflict (name) do nothing;

-- name: alert_next
-- The alerts for which something has happened that was not reported, each with the time at which it is
-- to be sent: when the first event has settled, and the last message was sent long enough ago. One
-- probe of attempt_dead and of schedule_tick_missed for each. That a message of ours cannot be sent is
-- no event.
with g as materialized (
    select i.doc, duetime.now() as moment,
        (i.doc ->> 'settle')::bigint * interval '1 microsecond' as settle
    from (select %s::json as doc) as i
)
select l.name,
    greatest(e.first + g.settle, l.sent_at + a.every * interval '1 microsecond'), g.moment
from g cross join lateral json_to_recordset(g.doc -> 'alerts')
    as a(name text, every bigint, jobs boolean, ticks boolean)
join duetime.alert as l on l.name = a.name
cross join lateral (
    select min(f.at) as first from (
        (select t.finished_at as at from duetime.attempt as t
         cross join lateral (
            select from duetime.job as j where j.id = t.job_id and j.task <> 'duetime.alert' offset 0
         ) as j
         where a.jobs and t.outcome = 'dead' and t.finished_at > l.reported_until
         order by t.finished_at limit 1)
        union all
        (select o.finished_at from duetime.schedule_tick as o
         where a.ticks and o.status in ('skipped', 'coalesced') and o.finished_at > l.reported_until
           and o.reason ->> 'code' in (select json_array_elements_text(g.doc -> 'codes'))
         order by o.finished_at limit 1)) as f
) as e
where e.first is not null;

-- name: alert_since
with g as materialized (
    select * from json_to_record(%s::json) as g(name text, every bigint)
)
select l.reported_until from g join duetime.alert as l on l.name = g.name
where l.sent_at is null or l.sent_at + g.every * interval '1 microsecond' <= duetime.now();

-- name: alert_dead_jobs
-- The jobs that died in this time, by task and error. Served by attempt_dead and job_pkey.
with g as materialized (
    select * from json_to_record(%s::json) as g(since timestamptz, until timestamptz, most integer)
)
select j.task, d.error_code, count(*), max(d.job_id)
from (select a.job_id, a.error_code from duetime.attempt as a
      where a.outcome = 'dead' and a.finished_at > (select since from g)
        and a.finished_at <= (select until from g)
      order by a.finished_at limit (select most from g)) as d
cross join lateral (select j.task from duetime.job as j where j.id = d.job_id offset 0) as j
where j.task <> 'duetime.alert'
group by j.task, d.error_code order by count(*) desc, j.task;

-- name: alert_missed_ticks
-- The ticks that were found missed in this time, by schedule and reason. Served by schedule_tick_missed.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(since timestamptz, until timestamptz, most integer, codes json)
)
select s.name, o.code, count(*), max(o.tick)
from (select o.schedule_id, o.tick, o.reason ->> 'code' as code from duetime.schedule_tick as o
      where o.status in ('skipped', 'coalesced') and o.finished_at > (select since from g)
        and o.finished_at <= (select until from g)
        and o.reason ->> 'code' in (select json_array_elements_text(codes) from g)
      order by o.finished_at limit (select most from g)) as o
join duetime.schedule as s on s.id = o.schedule_id
group by s.name, o.code order by count(*) desc, s.name;

-- name: alert_reported
update duetime.alert as l set reported_until = g.until, sent_at = duetime.now()
from json_to_record(%s::json) as g(name text, until timestamptz)
where l.name = g.name and l.reported_until < g.until;
