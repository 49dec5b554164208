-- Statements that read the ledgers of schedules for timelines and heat maps.

-- name: timeline_ticks
-- The newest ticks of each schedule in a window, the oldest first. Served by schedule_tick_pkey.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(schedules json, since timestamptz, until timestamptz, most integer)
)
select o.schedule_id, o.tick, o.status, o.begun_at, o.started_at, o.finished_at, o.succeeded, o.job_id
from json_array_elements_text((select schedules from g)) as s(id)
cross join lateral (
    select * from duetime.schedule_tick as o
    where o.schedule_id = s.id::bigint and o.tick >= (select since from g)
      and o.tick <= (select until from g)
    order by o.tick desc limit (select most from g)) as o
order by o.schedule_id, o.tick;

-- name: heat_map_ticks
-- How many ticks of a schedule had each result, for each quarter of an hour: zones differ by that.
-- Served by schedule_tick_pkey.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(schedule bigint, since timestamptz, until timestamptz, most integer)
)
select date_bin('15 minutes', o.tick, '2000-01-01 00:00Z'), o.status, o.begun_at is not null,
    o.finished_at is not null, o.succeeded, o.started_at is not null, count(*)
from (select * from duetime.schedule_tick as o
      where o.schedule_id = (select schedule from g) and o.tick >= (select since from g)
        and o.tick <= (select until from g)
      order by o.tick desc limit (select most from g)) as o
group by 1, 2, 3, 4, 5, 6;
