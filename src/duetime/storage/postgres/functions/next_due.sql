-- When the next job of a queue is due, overdue ones included; null if none waits. One probe of
-- due_pkey for each lane, whatever the number of jobs: a plain `min(run_at)` would read them all.
create or replace function duetime.next_due(queue text default 'default') returns timestamptz
    language sql stable as $$
    select min(d.run_at)
    from generate_series(0, 10) as p(priority)
    cross join lateral (
        select due.run_at from duetime.due
        where due.queue = next_due.queue and due.priority = p.priority
        order by due.run_at, due.job_id limit 1
    ) as d
$$;
