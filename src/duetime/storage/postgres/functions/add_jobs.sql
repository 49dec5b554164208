-- Makes jobs. Everything except COPY calls `_add_jobs`.

-- The options of a task, as its last deployed worker knows them; else the defaults.
create or replace function duetime._task_options(task text)
    returns table (queue text, priority smallint, max_attempts smallint, timeout interval,
                   expires interval, max_args_bytes integer, flow boolean)
    language sql stable as $$
    select coalesce(t.queue, 'default'), coalesce(t.priority, 5)::smallint,
        coalesce(t.max_attempts, 3)::smallint, t.timeout, t.expires,
        coalesce(t.max_args_bytes, 1048576), t.flow
    from (select) as one left join duetime.task as t on t.name = _task_options.task
$$;

-- A job for `_add_jobs`. Options that are not given are the task's.
create or replace function duetime._new_job(
    id bigint, task text, run_at timestamptz, args json, queue text default null,
    priority integer default null, key text default null, hold interval default null,
    partition text default null, max_attempts integer default null,
    timeout interval default null, expires_at timestamptz default null,
    flow boolean default null)
    returns duetime.new_job language sql immutable as $$
    select row(id, task, run_at, args, queue, priority, key, null, hold, partition, max_attempts,
               timeout, expires_at, null, flow)::duetime.new_job
$$;

-- Add jobs, each with its row of `due`, and wake the workers that sleep on their queues. An option that is
-- null is the task's, unless the jobs are `complete`: then null means that there is none.
create or replace function duetime._add_jobs(
    jobs duetime.new_job[], complete boolean default false, notify boolean default true,
    moment timestamptz default duetime.now()) returns void
    language plpgsql as $$
declare
    woken bigint;
begin
    if jobs is null then
        return;
    end if;
    if not complete then
        jobs := array(
            select row(n.id, n.task, n.run_at, n.args, coalesce(n.queue, t.queue),
                       coalesce(n.priority, t.priority), n.key, n.on_conflict, n.hold, n.partition,
                       coalesce(n.max_attempts, t.max_attempts), coalesce(n.timeout, t.timeout),
                       n.expires_at, n.trace, coalesce(n.flow, t.flow))::duetime.new_job
            from unnest(jobs) as n cross join lateral duetime._task_options(n.task) as t);
    end if;
    with made as (
        insert into duetime.job (id, task, queue, priority, args, key, hold, partition,
                                 max_attempts, timeout, expires_at, created_at, trace, flow)
        select n.id, n.task, n.queue, n.priority, n.args, n.key, n.hold, n.partition,
               n.max_attempts, n.timeout, n.expires_at, moment, n.trace, n.flow
        from unnest(jobs) as n
    ), waiting as (
        insert into duetime.due (queue, priority, run_at, job_id, partition)
        select n.queue, n.priority, n.run_at, n.id, n.partition from unnest(jobs) as n
    )
    select count(duetime.wake(q.queue, q.run_at)) into woken
    from (select n.queue, min(n.run_at) as run_at from unnest(jobs) as n where notify
          group by n.queue order by n.queue) as q;
end $$;
