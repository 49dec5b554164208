-- What metrics read of the whole database. Each statement reads a bounded number of rows, however
-- many jobs there are.

-- name: gauge_sizes
-- How many jobs wait, exactly as long as they are few; and the server's own estimate, which
-- follows within a second. After a crash of the server it knows nothing until the next vacuum.
-- due_pkey, index only.
select (select count(*) from (
        select from duetime.due limit ((%s::json ->> 'few')::integer + 1)) as d),
    greatest(pg_stat_get_live_tuples('duetime.due'::regclass),
        (select reltuples from pg_class where oid = 'duetime.due'::regclass))::bigint;

-- name: gauge_waiting
-- The jobs that wait, by task: due and later. For few of them.
select t.name, count(*) filter (where d.run_at <= c.moment),
    count(*) filter (where d.run_at > c.moment)
from (select duetime.now() as moment, %s::json as doc offset 0) as c
cross join duetime.due as d
cross join lateral (select j.task from duetime.job as j where j.id = d.job_id offset 0) as j
left join duetime.task as t on t.name = j.task
group by t.name;

-- name: gauge_waiting_sample
-- As `gauge_waiting`, of a sample: so many probes of due_job, each at a random id of its part of
-- all ids. Not at evenly spaced ids: tasks are often enqueued in turn.
with bounds as materialized (
    select min(job_id) as first, max(job_id) as last from duetime.due
), probe as materialized (
    select b.first + ((b.last - b.first) * ((n.place - random()) / i.probes))::bigint as job_id
    from bounds as b
    cross join (select (%s::json ->> 'probes')::integer as probes offset 0) as i
    cross join lateral generate_series(1, i.probes) as n(place)
), sampled as materialized (
    select distinct d.job_id, d.run_at
    from probe as p
    cross join lateral (
        select due.job_id, due.run_at from duetime.due
        where due.job_id >= p.job_id order by due.job_id limit 1
    ) as d
)
select t.name, count(*) filter (where s.run_at <= c.moment),
    count(*) filter (where s.run_at > c.moment)
from (select duetime.now() as moment offset 0) as c
cross join sampled as s
cross join lateral (select j.task from duetime.job as j where j.id = s.job_id offset 0) as j
left join duetime.task as t on t.name = j.task
group by t.name;

-- name: gauge_oldest
-- For each queue, how long ago its first job fell due, in seconds, and whether it is paused: one
-- probe of due_pkey for each lane.
with lane as materialized (
    select e.value ->> 0 as queue, (e.value ->> 1)::smallint as priority
    from json_array_elements(%s::json) as e(value)
)
select l.queue,
    greatest(0, extract(epoch from duetime.now() - min(d.run_at)))::double precision,
    exists (select from duetime.queue as q where q.name = l.queue and q.paused_at is not null)
from lane as l
cross join lateral (
    select due.run_at from duetime.due
    where due.queue = l.queue and due.priority = l.priority
    order by due.run_at, due.job_id limit 1
) as d
group by l.queue;

-- name: gauge_dead
-- Of the newest attempts that ended as dead, how many jobs have not been requeued since.
-- attempt_troubled; due_job and attempt_pkey for each.
select count(*)
from (
    -- A constant would let the planner choose attempt_dead, and sort all that ever died.
    select n.* from unnest('{dead}'::text[]) as s(outcome) cross join lateral (
        select a.job_id, a.token from duetime.attempt as a
        where a.outcome = s.outcome and a.outcome <> 'completed'
        order by a.job_id desc limit (%s::json ->> 'most')::integer) as n
) as a
where not exists (select from duetime.due as d where d.job_id = a.job_id)
  and not exists (
    select from duetime.attempt as b where b.job_id = a.job_id and b.token > a.token);

-- name: gauge_counts
-- Jobs that are parked and live workers; schedules, and those that are neither paused nor broken; ticks
-- that were found missed in the last hour. Served by schedule_next, schedule_tick_missed and the primary
-- keys.
select
    (select count(*) from (
        select from duetime.parked as p order by p.job_id limit (i.doc ->> 'most')::integer) as p),
    (select count(*) from duetime.worker as w where w.lease_until > duetime.now()),
    (select count(*) from (
        select from duetime.schedule as s order by s.id
        limit (i.doc ->> 'schedules')::integer) as s),
    (select count(*) from (
        select from duetime.schedule as s where s.paused_at is null and s.broken is null
        order by s.next_run_at limit (i.doc ->> 'schedules')::integer) as s),
    (select count(*) from (
        select from duetime.schedule_tick as o
        where o.status in ('skipped', 'coalesced') and o.finished_at > duetime.now() - interval '1 hour'
          and o.reason ->> 'code' in (select json_array_elements_text(i.doc -> 'missed'))
        order by o.finished_at desc limit (i.doc ->> 'most')::integer) as o)
from (select %s::json as doc) as i;

-- name: gauge_dead_tuples
-- What vacuum has yet to remove, by table.
select n.name, pg_stat_get_dead_tuples(n.id)
from (select %s::json) as i
cross join (values ('due', 'duetime.due'::regclass), ('claim', 'duetime.claim'::regclass),
    ('job', 'duetime.job'::regclass), ('attempt', 'duetime.attempt'::regclass)) as n(name, id);
