-- What workers counted of their attempts.

-- name: attempt_stats_lock
-- One at a time: what is stored is read, added to, and written.
select pg_advisory_xact_lock(hashtext('duetime.attempt_stat')) where %s::json is not null;

-- name: attempt_stats_try_lock
-- A row if no other worker has the lock: a hundred workers do not wait in line, each on a connection.
select 1 where %s::json is not null
    and pg_try_advisory_xact_lock(hashtext('duetime.attempt_stat'));

-- name: attempt_stats_get
-- Served by attempt_stat_pkey.
select s.minutes, s.at, s.task, s.counts::text, s.lateness::text, s.duration::text, s.busy_us
from json_to_recordset(%s::json) as g(minutes smallint, at timestamptz, task text)
cross join lateral (
    select * from duetime.attempt_stat as s
    where s.minutes = g.minutes and s.at = g.at and s.task = g.task offset 0) as s;

-- name: attempt_stats_put
insert into duetime.attempt_stat (minutes, at, task, counts, lateness, duration, busy_us)
select g.minutes, g.at, g.task, g.counts, g.lateness, g.duration, g.busy_us
from json_to_recordset(%s::json) as g(minutes smallint, at timestamptz, task text, counts json,
                                      lateness json, duration json, busy_us bigint)
on conflict (minutes, at, task) do update set (counts, lateness, duration, busy_us)
    = (excluded.counts, excluded.lateness, excluded.duration, excluded.busy_us);

-- name: attempt_stats_completed
-- How many attempts of each task completed since then. Served by attempt_stat_pkey.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(minutes smallint, since timestamptz, most integer)
)
select s.task, sum(coalesce((s.counts ->> 'completed')::bigint, 0))::bigint
from (select s.task, s.counts from duetime.attempt_stat as s
      where s.minutes = (select minutes from g) and s.at >= (select since from g)
      order by s.at, s.task limit (select most from g)) as s
group by s.task;

-- name: attempt_samples_put
insert into duetime.attempt_sample (level, started_at, job_id, task, outcome, run_at, finished_at)
select g.level, g.started_at, g.job_id, g.task, g.outcome, g.run_at, g.finished_at
from json_to_recordset(%s::json)
    as g(level smallint, started_at timestamptz, job_id bigint, task text, outcome text,
         run_at timestamptz, finished_at timestamptz)
on conflict (level, started_at, job_id) do nothing;

-- name: attempt_samples_find
-- A few of each slice of time: what is read is bounded, and spread over all. Served by
-- attempt_sample_pkey.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(levels json, slices json, task text, most integer)
), slice as materialized (
    select (e.value ->> 0)::timestamptz as since, (e.value ->> 1)::timestamptz as until
    from g cross join lateral json_array_elements(g.slices) as e(value)
)
select f.job_id, f.task, f.outcome, f.run_at, f.started_at, f.finished_at
from slice as p
cross join lateral (
    select s.* from json_array_elements_text((select levels from g)) as l(level)
    cross join lateral (
        select s.* from duetime.attempt_sample as s
        where s.level = l.level::smallint and s.started_at >= p.since and s.started_at < p.until
          and ((select task from g) is null or s.task = (select task from g))
        order by s.started_at limit (select most from g)) as s
    limit (select most from g)
) as f
order by f.started_at, f.job_id;

-- name: attempt_stats_prune
-- Served by the primary keys.
with old as materialized (
    select o.minutes, o.level, o.before
    from json_to_recordset(%s::json) as o(minutes smallint, level smallint, before timestamptz)
), counted as (
    delete from duetime.attempt_stat as s using old as o
    where s.minutes = o.minutes and s.at < o.before
)
delete from duetime.attempt_sample as s using old as o
where s.level = o.level and s.started_at < o.before;
