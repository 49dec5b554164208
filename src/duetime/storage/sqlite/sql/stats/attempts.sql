-- What workers counted of their attempts.

-- name: attempt_stats_lock
-- There is one writer at a time.
with input(doc) as (select ?) select 1 from input where false;

-- name: attempt_stats_try_lock
with input(doc) as (select ?) select 1 from input;

-- name: attempt_stats_get
-- Served by the primary key.
with input(doc) as (select ?)
select s.minutes, s.at, s.task, s.counts, s.lateness, s.duration, s.busy_us
from input cross join json_each(doc, '$.doc') as e
cross join duetime_attempt_stat as s
    on s.minutes = json_extract(e.value, '$.minutes') and s.at = json_extract(e.value, '$.at')
    and s.task = json_extract(e.value, '$.task');

-- name: attempt_stats_put
with input(doc) as (select ?)
insert into duetime_attempt_stat (minutes, at, task, counts, lateness, duration, busy_us)
select json_extract(e.value, '$.minutes'), json_extract(e.value, '$.at'),
    json_extract(e.value, '$.task'), json_extract(e.value, '$.counts'),
    json_extract(e.value, '$.lateness'), json_extract(e.value, '$.duration'),
    json_extract(e.value, '$.busy_us')
from input cross join json_each(doc, '$.doc') as e
where true
on conflict (minutes, at, task) do update set (counts, lateness, duration, busy_us)
    = (excluded.counts, excluded.lateness, excluded.duration, excluded.busy_us);

-- name: attempt_stats_completed
-- How many attempts of each task completed since then. Served by the primary key.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.minutes') as minutes, json_extract(doc, '$.doc.since') as since,
        json_extract(doc, '$.doc.most') as most from input
)
select s.task, sum(coalesce(json_extract(s.counts, '$.completed'), 0))
from (select s.task, s.counts from duetime_attempt_stat as s
      where s.minutes = (select minutes from g) and s.at >= (select since from g)
      order by s.at, s.task limit (select most from g)) as s
group by s.task;

-- name: attempt_samples_put
with input(doc) as (select ?)
insert into duetime_attempt_sample (level, started_at, job_id, task, outcome, run_at, finished_at)
select json_extract(e.value, '$.level'), json_extract(e.value, '$.started_at'),
    json_extract(e.value, '$.job_id'), json_extract(e.value, '$.task'),
    json_extract(e.value, '$.outcome'), json_extract(e.value, '$.run_at'),
    json_extract(e.value, '$.finished_at')
from input cross join json_each(doc, '$.doc') as e
where true
on conflict (level, started_at, job_id) do nothing;

-- name: attempt_samples_find
-- A few of each slice of time: what is read is bounded, and spread over all. Served by the primary key.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.task') as task, json_extract(doc, '$.doc.most') as most from input
), place as materialized (
    select json_extract(p.value, '$[0]') as since, json_extract(p.value, '$[1]') as until,
        l.value as level
    from input cross join json_each(doc, '$.doc.slices') as p
    cross join json_each(doc, '$.doc.levels') as l
), found as materialized (
    select (
        select json_group_array(json_array(f.job_id, f.task, f.outcome, f.run_at, f.started_at,
                                           f.finished_at))
        from (
            select s.* from duetime_attempt_sample as s
            where s.level = p.level and s.started_at >= p.since and s.started_at < p.until
              and ((select task from g) is null or s.task = (select task from g))
            order by s.started_at limit (select most from g)) as f
    ) as samples from place as p
)
select json_extract(e.value, '$[0]'), json_extract(e.value, '$[1]'), json_extract(e.value, '$[2]'),
    json_extract(e.value, '$[3]'), json_extract(e.value, '$[4]'), json_extract(e.value, '$[5]')
from found as f cross join json_each(f.samples) as e
order by 5, 1;

-- name: attempt_stats_prune
-- Served by the primary key.
with input(doc) as (select ?)
delete from duetime_attempt_stat as s
where (s.minutes, s.at, s.task) in (
    select o.minutes, o.at, o.task
    from input cross join json_each(doc, '$.doc') as e
    cross join duetime_attempt_stat as o
        on o.minutes = json_extract(e.value, '$.minutes')
        and o.at < json_extract(e.value, '$.before'));

-- name: attempt_stats_prune_2
with input(doc) as (select ?)
delete from duetime_attempt_sample as s
where (s.level, s.started_at, s.job_id) in (
    select o.level, o.started_at, o.job_id
    from input cross join json_each(doc, '$.doc') as e
    cross join duetime_attempt_sample as o
        on o.level = json_extract(e.value, '$.level')
        and o.started_at < json_extract(e.value, '$.before'));
