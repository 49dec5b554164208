-- Put jobs back into `due`, and wake the workers that sleep on their queues. `attempts`: how many count
-- so far. `lanes`: a priority other than the job's own, or null. Returns the jobs that wait again; one
-- that waits already is left as it is. Everything by which a job waits again does it here: retry, snooze,
-- release, rescue, unpark, requeue, a flow that is suspended.
create or replace function duetime._wait_again(
    jobs bigint[], run_ats timestamptz[], attempts integer[], lanes integer[] default null,
    notify boolean default true) returns setof bigint
    language plpgsql as $$
begin
    return query
    with again as (
        insert into duetime.due (queue, priority, run_at, job_id, attempt, partition)
        select j.queue, coalesce(g.lane, j.priority), g.run_at, j.id, g.attempt, j.partition
        from unnest(jobs, run_ats, attempts, lanes) as g(job_id, run_at, attempt, lane)
        cross join lateral (select * from duetime.job where job.id = g.job_id offset 0) as j
        on conflict (job_id) do nothing
        returning due.queue, due.run_at, due.job_id
    ), woken as materialized (
        select count(duetime.wake(q.queue, q.run_at))
        from (select a.queue, min(a.run_at) as run_at from again as a where notify
              group by a.queue order by a.queue) as q
    )
    select a.job_id from again as a, woken;
end $$;
