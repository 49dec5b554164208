-- Statements that read the ledgers of schedules for timelines and heat maps.

-- name: timeline_ticks
-- The newest ticks of each schedule in a window, the oldest first. Served by the primary key.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.since') as since, json_extract(doc, '$.doc.until') as until,
        json_extract(doc, '$.doc.most') as most from input
), first as materialized (
    select s.value as schedule_id, (
        -- No row of the window is older than this one.
        select o.tick from duetime_schedule_tick as o
        where o.schedule_id = s.value and o.tick >= (select since from g)
          and o.tick <= (select until from g)
        order by o.tick desc limit 1 offset (select most - 1 from g)) as tick
    from input cross join json_each(doc, '$.doc.schedules') as s
)
select o.schedule_id, o.tick, o.status, o.begun_at, o.started_at, o.finished_at, o.succeeded, o.job_id
from first as f cross join duetime_schedule_tick as o
    on o.schedule_id = f.schedule_id and o.tick >= coalesce(f.tick, (select since from g))
    and o.tick <= (select until from g)
order by o.schedule_id, o.tick;

-- name: heat_map_ticks
-- How many ticks of a schedule had each result, for each quarter of an hour: zones differ by that.
-- Served by the primary key.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.schedule') as schedule, json_extract(doc, '$.doc.since') as since,
        json_extract(doc, '$.doc.until') as until, json_extract(doc, '$.doc.most') as most from input
)
select r.tick - r.tick % 900000000, r.status, r.begun_at is not null, r.finished_at is not null,
    r.succeeded, r.started_at is not null, count(*)
from (select * from duetime_schedule_tick as o
      where o.schedule_id = (select schedule from g) and o.tick >= (select since from g)
        and o.tick <= (select until from g)
      order by o.tick desc limit (select most from g)) as r
group by 1, 2, 3, 4, 5, 6;
