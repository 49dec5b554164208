-- Statements of an enqueue. COPY is for a thousand jobs and more.

-- name: enqueue
select job_id, action from duetime.enqueue_many(%s::json, %s::boolean) order by place;

-- name: enqueue_without_waiting
-- As `enqueue`. It fails if it has to wait longer than this for a transaction that holds a key: the limit
-- is set before the function is called, which depends on it, and ends with the transaction.
select e.job_id, e.action
from (select set_config('lock_timeout', '20ms', true) <> '' as is_set) as l
cross join lateral duetime.enqueue_many(%s::json, %s::boolean and l.is_set) as e order by e.place;

-- name: enqueue_alike
-- Jobs without keys that differ in their arguments alone, by a role that may write to the tables. One
-- statement, so one transaction; it reads no table. Values that all jobs share are checked by their
-- domains once. Ids are in the order of the arguments.
with shared as materialized (
    select moment::duetime.moment as created_at, t.run_at::duetime.moment as run_at,
        coalesce(%(expires_at)s::timestamptz, t.run_at + %(expires_after)s::interval)::duetime.moment
            as expires_at,
        0::duetime.attempts as attempt
    from duetime.now() as moment
    cross join lateral (
        select coalesce(%(run_at)s::timestamptz, moment + %(delay)s::interval, moment) as run_at) as t
), fresh as materialized (
    select nextval('duetime.job_id_seq') as id, args from unnest(%(args)s::json[]) as args
), made as (
    insert into duetime.job (id, task, queue, priority, args, partition, max_attempts, timeout, expires_at,
                             created_at, trace, flow)
    select n.id, %(task)s::text, %(queue)s::text, %(priority)s::duetime.priority, n.args, %(partition)s::text,
        %(max_attempts)s::duetime.attempts, %(timeout)s::duetime.span, s.expires_at, s.created_at,
        %(trace)s::json, %(flow)s::boolean
    from fresh as n cross join shared as s
), waiting as (
    insert into duetime.due (queue, priority, run_at, job_id, attempt, partition)
    select %(queue)s, %(priority)s, s.run_at, n.id, s.attempt, %(partition)s
    from fresh as n cross join shared as s
)
select array(select id from fresh),
    (select case when %(notify)s::boolean then duetime.wake(%(queue)s, s.run_at) end from shared as s);

-- name: enqueue_held
-- As `enqueue_alike`, for one job that is due now, by the process of a worker that is idle: the worker holds
-- the job with the same commit, and no notification is sent. If its lease has run out, or the queue is paused
-- or limited, the job waits like any other. Returns the job, the token of the claim or 0, and the time in
-- microseconds.
with shared as materialized (
    select moment::duetime.moment as created_at,
        coalesce(%(expires_at)s::timestamptz, moment + %(expires_after)s::interval)::duetime.moment as expires_at
    from duetime.now() as moment
), fresh as materialized (
    select nextval('duetime.job_id_seq') as id, args from unnest(%(args)s::json[]) as args
), made as (
    insert into duetime.job (id, task, queue, priority, args, partition, max_attempts, timeout, expires_at,
                             created_at, trace, flow)
    select n.id, %(task)s::text, %(queue)s::text, %(priority)s::duetime.priority, n.args, %(partition)s::text,
        %(max_attempts)s::duetime.attempts, %(timeout)s::duetime.span, s.expires_at, s.created_at,
        %(trace)s::json, %(flow)s::boolean
    from fresh as n cross join shared as s
), holder as materialized (
    select w.id from duetime.worker as w
    where w.id = %(worker)s::bigint and w.lease_until > (select created_at from shared)
      and not exists (
        select from duetime.queue as q
        where q.name = %(queue)s
          and (q.paused_at is not null or coalesce(q.running, q.per_partition, q.rate) is not null))
), held as (
    insert into duetime.claim (token, worker_id, job_ids, attempts, claimed_at)
    select duetime._next_number('duetime.claim_token_seq'), h.id, array[n.id], '{1}', s.created_at
    from holder as h cross join fresh as n cross join shared as s
    returning token
), waiting as (
    insert into duetime.due (queue, priority, run_at, job_id, attempt, partition)
    select %(queue)s, %(priority)s, s.created_at, n.id, 0, %(partition)s
    from fresh as n cross join shared as s
    where not exists (select from holder)
)
select array[n.id, coalesce((select token from held), 0),
             (extract(epoch from s.created_at) * 1000000)::bigint],
    case when %(notify)s::boolean and not exists (select from holder)
        then duetime.wake(%(queue)s, s.created_at) end
from fresh as n cross join shared as s;

-- name: enqueue_unlike
-- As `enqueue_alike`, for jobs of several kinds: `kind` has the number of each job's kind.
with kind as materialized (
    select k.number, k.task, k.queue, k.priority::duetime.priority as priority, k.partition,
        k.max_attempts::duetime.attempts as max_attempts, k.timeout::duetime.span as timeout, k.trace, k.flow,
        moment::duetime.moment as created_at, t.run_at::duetime.moment as run_at,
        coalesce(k.expires_at, t.run_at + k.expires_after)::duetime.moment as expires_at,
        0::duetime.attempts as attempt
    from duetime.now() as moment
    cross join unnest(
        %(task)s::text[], %(queue)s::text[], %(priority)s::smallint[], %(run_at)s::timestamptz[],
        %(delay)s::interval[], %(partition)s::text[], %(max_attempts)s::smallint[], %(timeout)s::interval[],
        %(expires_at)s::timestamptz[], %(expires_after)s::interval[], %(trace)s::json[], %(flow)s::boolean[]
    ) with ordinality as k(task, queue, priority, run_at, delay, partition, max_attempts, timeout, expires_at,
                           expires_after, trace, flow, number)
    cross join lateral (select coalesce(k.run_at, moment + k.delay, moment) as run_at) as t
), fresh as materialized (
    select nextval('duetime.job_id_seq') as id, n.args, n.kind
    from unnest(%(args)s::json[], %(kind)s::bigint[]) as n(args, kind)
), made as (
    insert into duetime.job (id, task, queue, priority, args, partition, max_attempts, timeout, expires_at,
                             created_at, trace, flow)
    select n.id, k.task, k.queue, k.priority, n.args, k.partition, k.max_attempts, k.timeout, k.expires_at,
        k.created_at, k.trace, k.flow
    from fresh as n join kind as k on k.number = n.kind
), waiting as (
    insert into duetime.due (queue, priority, run_at, job_id, attempt, partition)
    select k.queue, k.priority, k.run_at, n.id, k.attempt, k.partition
    from fresh as n join kind as k on k.number = n.kind
)
select array(select id from fresh),
    (select count(duetime.wake(q.queue, q.run_at))
     from (select k.queue, min(k.run_at) as run_at from kind as k where %(notify)s::boolean
           group by k.queue order by k.queue) as q);

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
