-- Statements of an enqueue. COPY is for many jobs at once.

-- name: enqueue
select job_id, action from duetime.enqueue_many(%s::json, %s) order by place;

-- name: may_copy
-- Whether this role may write to the tables; one that only enqueues calls the function.
select has_table_privilege('duetime.job', 'insert') and has_table_privilege('duetime.due', 'insert')
    and has_sequence_privilege('duetime.job_id_seq', 'usage');

-- name: reserve_ids
select duetime.now(), array(select nextval('duetime.job_id_seq') from generate_series(1, %(count)s));

-- name: copy_job
copy duetime.job (id, task, queue, priority, args, partition, max_attempts, timeout, expires_at, created_at, trace, flow) from stdin (format binary);

-- name: copy_due
copy duetime.due (queue, priority, run_at, job_id, partition) from stdin (format binary);

-- name: wake
select duetime.wake(%(queue)s, %(run_at)s);
