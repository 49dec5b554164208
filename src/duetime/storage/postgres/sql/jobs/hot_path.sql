-- Statements of the hot path: claim, finish, give back.

-- name: claim
-- At most one worker gets a job: its row of `due` is locked, skipped by others, deleted.
-- Served by due_pkey, lane by lane. `ctid = any(array(…))` keeps the delete a TID scan.
-- Returns one row for each job, in no order: sorting them here, arguments and all, costs 1 µs a job.
-- And one row without a task, with what they share: the token, if there are jobs, and the time. Its
-- `expires_at` is null if the worker's lease has run out: then nothing is claimed. A claim may wait
-- for a lock for any time, so the claim itself checks the lease.
-- Large arguments are not returned: a thousand jobs of a megabyte each would fill a worker's memory.
-- They are read when the job starts.
with lane as materialized (
    select l.queue, l.priority, l.floor, l.floor_id, l.place
    from rows from (json_to_recordset(%(lanes)s::json)
                    as (queue text, priority smallint, floor timestamptz, floor_id bigint))
        with ordinality as l(queue, priority, floor, floor_id, place)
    -- `offset 0` keeps it a probe for each lane: a join may read every limited queue.
    where not exists (
        select from duetime.queue as q
        where q.name = l.queue
          and (q.paused_at is not null
               or coalesce(q.running, q.per_partition, q.rate) is not null)
        offset 0)
    order by l.place
), clock as materialized (
    select now.moment, w.moment + make_interval(secs => %(lead)s) as until
    from (select duetime.now() as moment offset 0) as now
    left join lateral (select now.moment from duetime.worker
                       where id = %(worker)s and lease_until > now.moment) as w on true
), claiming as materialized (
    -- Rows that a transaction in progress has locked are passed before `skip locked` tries each of
    -- them, which costs five times as much. Their `xmax` is that transaction. Only within a backlog,
    -- where there is a floor: an `xmax` may also be the number of a lock that several held, long ago.
    select array(select x::xid from pg_snapshot_xip(s.seen) as x) as xids,
           age(pg_snapshot_xmax(s.seen)::xid) as newer
    from (select pg_current_snapshot() as seen offset 0) as s
), picked as materialized (
    select d.id
    from lane cross join lateral (
        select due.ctid as id
        from duetime.due
        where due.queue = lane.queue and due.priority = lane.priority
          and (due.run_at, due.job_id) > (lane.floor, lane.floor_id)
          and due.run_at <= (select until from clock)
          and (lane.floor_id = 0
               or age(due.xmax) > (select newer from claiming)
                  and due.xmax <> all ((select xids from claiming)::xid[]))
        order by due.run_at, due.job_id
        limit %(want)s
        for update skip locked
    ) as d
    limit %(want)s
), taken as (
    delete from duetime.due where ctid = any (array(select id from picked))
    returning queue, priority, run_at, job_id, attempt
), held as (
    insert into duetime.claim (token, worker_id, job_ids, attempts, claimed_at)
    select duetime._next_number('duetime.claim_token_seq'), %(worker)s, array_agg(job_id),
           array_agg((attempt + 1)::smallint), (select moment from clock)
    from taken having count(*) > 0
    returning token
)
select h.token, null, null, null, null, null, null, c.moment, null, null, null, c.until, null, null
from clock as c left join held as h on true
union all
select t.job_id, j.task, t.queue, t.priority,
    -- The stored size costs nothing to read; the length of the text would fetch a value that is
    -- stored out of line.
    case when pg_column_size(j.args) <= %(most_args)s
          and octet_length(j.args::text) <= %(most_args)s then j.args::text end,
    t.attempt + 1, j.max_attempts,
    t.run_at, j.key, j.partition, j.timeout, j.expires_at, j.trace::text,
    -- Of a run that has nothing to read, so that its first activation need not try. Anything
    -- is recorded before the run's job returns to `due`.
    j.flow and not exists (select from duetime.flow_step as s where s.run_id = t.job_id)
        and not exists (select from duetime.flow_signal as f where f.run_id = t.job_id)
from taken as t
cross join lateral (select * from duetime.job where job.id = t.job_id offset 0) as j;

-- name: claim_turn
-- In the transaction of a claim, before it: waits until such claims of every other worker of the same
-- queues have committed. A statement of its own: a claim must see what was committed by then. It
-- does not wait for ever, as a process that was stopped in the middle of a claim may have the turn.
select set_config('lock_timeout', '2s', true), pg_advisory_xact_lock(
    hashtext('duetime.claim'),
    hashtext((select string_agg(distinct l.queue, ' ' order by l.queue)
              from json_to_recordset(%(lanes)s::json) as l(queue text)) || %(worker)s::bigint %% 2));

-- name: next_run_at
-- The earliest due time of the lanes: one probe of due_pkey for each. Overdue counts: a job
-- that fell due after the claim must not be slept over.
select duetime.now(), min(least(d.run_at, '9999-01-01Z'))
from unnest(%(queues)s::text[]) as l(queue)
cross join generate_series(0, 9) as p(priority)
cross join lateral (
    select due.run_at from duetime.due
    where due.queue = l.queue and due.priority = p.priority
    order by due.run_at, due.job_id limit 1
) as d
where not exists (
    select from duetime.queue as q
    where q.name = l.queue
      and (q.paused_at is not null or coalesce(q.running, q.per_partition, q.rate) is not null));

-- name: next_limited_at
select min(d.run_at)
from unnest(%(queues)s::text[]) as l(queue)
cross join generate_series(0, 9) as p(priority)
cross join lateral (
    select due.run_at from duetime.due
    where due.queue = l.queue and due.priority = p.priority and due.run_at > %(now)s
    order by due.run_at, due.job_id limit 1
) as d;

-- name: args_of
select args::text from duetime.job where id = %(job)s;

-- name: claim_limited
select job_id, token, task, queue, priority,
    case when octet_length(args) <= %(most_args)s then args end, attempt, max_attempts, run_at, claimed_at, key,
    partition, timeout, expires_at, trace, false, open_at
from duetime.claim_limited(%(worker)s, %(queue)s, %(want)s, %(quarantined)s)
order by priority, run_at, job_id;

-- name: claim_quarantined
-- One job of the quarantine lane (priority 10), alone in its claim; none if the lease has run out.
with picked as materialized (
    select due.ctid as id from duetime.due
    where due.queue = %(queue)s and due.priority = 10 and due.run_at <= (select duetime.now())
      and exists (
        select from duetime.worker as w
        where w.id = %(worker)s and w.lease_until > (select duetime.now()))
      and not exists (
        select from duetime.queue as q
        where q.name = %(queue)s
          and (q.paused_at is not null or coalesce(q.running, q.per_partition, q.rate) is not null))
    order by due.run_at, due.job_id
    limit 1
    for update skip locked
), taken as (
    delete from duetime.due where ctid = any (array(select id from picked))
    returning queue, priority, run_at, job_id, attempt
), held as (
    insert into duetime.claim (token, worker_id, job_ids, attempts, claimed_at)
    select duetime._next_number('duetime.claim_token_seq'), %(worker)s, array[job_id],
           array[(attempt + 1)::smallint], duetime.now()
    from taken
    returning token, claimed_at
)
select t.job_id, h.token, j.task, t.queue, j.priority, j.args::text, t.attempt + 1,
    j.max_attempts, t.run_at, h.claimed_at, j.key, j.partition, j.timeout, j.expires_at,
    j.trace::text
from held as h cross join taken as t join duetime.job as j on j.id = t.job_id;

-- name: finish
-- Accepts a finished job only if its claim is still there (the fence); `key share` makes the
-- rescuer wait for us, and us for it. Returns the refused jobs, or one row of nulls if there are none.
-- A second finish under one token, which no healthy worker sends, is a unique violation: then the
-- worker sends `finish_fully`. Checking first would cost an index probe a job, `on conflict` a WAL
-- record. `unnest` is in the select list, where it does not fill a table of its own.
with sent as not materialized (
    select unnest(%(jobs)s::bigint[]) as job_id, unnest(%(tokens)s::bigint[]) as token,
           unnest(%(attempts)s::smallint[]) as attempt, unnest(%(started)s::integer[]) as started,
           unnest(%(finished)s::integer[]) as finished
), held as materialized (
    select c.token, c.worker_id, c.claimed_at, c.job_ids from duetime.claim as c
    where c.token = any (%(held)s::bigint[]) for key share
), mine as (
    select h.token, h.worker_id, h.claimed_at, unnest(h.job_ids) as job_id from held as h
), accepted as (
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                 started_at, finished_at)
    select e.job_id, e.token, e.attempt, m.worker_id, 'completed', m.claimed_at,
           m.claimed_at + e.started * interval '1 microsecond',
           m.claimed_at + e.finished * interval '1 microsecond'
    from sent as e join mine as m on m.job_id = e.job_id and m.token = e.token
    returning job_id, token
), closed as (
    -- Only after the fence has been passed: the count makes it wait.
    delete from duetime.claim
    where token = any (%(closed)s::bigint[]) and (select count(*) from accepted) >= 0
    returning queue
), woken as materialized (
    select count(pg_notify('duetime.finished', a.job_id::text))
    from accepted as a
    where (select exists (select from duetime.waiter))
      and exists (select from duetime.waiter as w where w.job_id = a.job_id)
), sleepers as materialized (
    select count(duetime.wake(c.queue)) from closed as c where c.queue is not null
)
select r.job_id, r.token
from woken cross join sleepers left join lateral (
    select e.job_id, e.token from sent as e
    where (select count(*) from accepted) < cardinality(%(jobs)s::bigint[])
      and not exists (select from accepted as a where a.job_id = e.job_id and a.token = e.token)
) as r on true;

-- name: finish_fully
-- As `finish`, for jobs with another outcome, an error, a result or a key. Retried and snoozed jobs
-- return to `due`, after `again`; the keys of the others are released. That reads `accepted` alone:
-- the planner takes it for one row, and would join it with `sent` pair by pair. A job that was
-- cancelled in the meantime does not run again, and is returned as cancelled: `share` makes a cancel
-- wait for us, and us for it.
with sent as materialized (
    select * from unnest(%(jobs)s::bigint[], %(tokens)s::bigint[], %(attempts)s::smallint[],
                         %(started)s::bigint[], %(finished)s::bigint[], %(outcome)s::text[],
                         %(again)s::interval[], %(codes)s::text[], %(errors)s::text[],
                         %(facts)s::text[], %(tracebacks)s::text[], %(results)s::text[],
                         %(logs)s::text[])
        as e(job_id, token, attempt, started, finished, outcome, again, code, error, facts,
             traceback, result, log)
), held as materialized (
    select c.token, c.worker_id, c.claimed_at, c.job_ids, c.cancelled, c.cancel_reasons
    from duetime.claim as c
    where c.token = any (%(held)s::bigint[]) order by c.token for share
), mine as materialized (
    select h.token, h.worker_id, h.claimed_at, h.cancelled, h.cancel_reasons,
           unnest(h.job_ids) as job_id
    from held as h
), accepted as (
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                 started_at, finished_at, error_code, error, facts, traceback,
                                 result, log)
    select e.job_id, e.token, e.attempt, m.worker_id,
           case when e.again is not null and e.job_id = any (m.cancelled) then 'cancelled'
                else e.outcome end,
           m.claimed_at,
           m.claimed_at + e.started * interval '1 microsecond',
           m.claimed_at + e.finished * interval '1 microsecond',
           case when e.code = 'cancelled'
                then coalesce(m.cancel_reasons[array_position(m.cancelled, e.job_id)] ->> 'code', e.code)
                else e.code end,
           case when e.outcome = 'cancelled' or e.again is not null
                then coalesce(m.cancel_reasons[array_position(m.cancelled, e.job_id)] -> 'facts' ->> 'text',
                              e.error)
                else e.error end,
           e.facts::json, e.traceback, e.result::json, e.log::json
    from sent as e join mine as m on m.job_id = e.job_id and m.token = e.token
    on conflict (job_id, token) do nothing
    returning job_id, token, outcome
), again as materialized (
    select duetime._wait_again(array_agg(e.job_id), array_agg(duetime.now() + e.again),
                               array_agg(e.attempt - (e.outcome = 'snoozed')::integer))
    from accepted as a join sent as e on e.job_id = a.job_id and e.token = a.token
    where e.again is not null and a.outcome <> 'cancelled'
    having count(*) > 0
), closed as (
    -- Only after the fence has been passed: the count makes it wait.
    delete from duetime.claim
    where token = any (%(closed)s::bigint[]) and (select count(*) from accepted) >= 0
    returning queue
), freed as (
    delete from duetime.job_key as k using accepted as a
    where k.job_id = a.job_id and a.outcome not in ('retried', 'snoozed')
      and (k.hold is null or a.outcome <> 'completed')
), kept as (
    update duetime.job_key as k set held_until = duetime.now() + k.hold
    from accepted as a
    where k.job_id = a.job_id and a.outcome = 'completed' and k.hold is not null
), woken as materialized (
    select count(pg_notify('duetime.finished', a.job_id::text))
    from accepted as a where exists (select from duetime.waiter as w where w.job_id = a.job_id)
), sleepers as materialized (
    select count(duetime.wake(q.queue)) from (
        select distinct c.queue from closed as c where c.queue is not null order by c.queue) as q
)
select r.job_id, r.token, r.cancelled
from woken cross join sleepers cross join (select count(*) from again) as waiting left join lateral (
    select e.job_id, e.token, false as cancelled from sent as e
    where (select count(*) from accepted) < cardinality(%(jobs)s::bigint[])
      and not exists (select from accepted as a where a.job_id = e.job_id and a.token = e.token)
    union all
    select a.job_id, a.token, true from accepted as a
    where a.outcome = 'cancelled'
      and a.job_id in (select unnest(h.cancelled) from held as h)
) as r on true;

-- name: finish_one
-- As `finish_fully`, for one job that completed with a result: it is planned in a tenth of the time.
with done as materialized (
    select duetime.complete(g.finish) as is_accepted, g.finish
    from (select %(finish)s::json as finish) as g
), closed as (
    -- Only after the fence has been passed: the count makes it wait.
    delete from duetime.claim
    where token = any (%(closed)s::bigint[]) and (select count(*) from done) >= 0
)
select (d.finish ->> 'job')::bigint, (d.finish ->> 'token')::bigint from done as d where not d.is_accepted;

-- name: finished_before
-- Which of these attempts are already in the history, from a finish whose answer was lost.
-- The row of a rescue has no start, and does not count.
select e.job_id, e.token from unnest(%(jobs)s::bigint[], %(tokens)s::bigint[]) as e(job_id, token)
where exists (select from duetime.attempt as a
              where a.job_id = e.job_id and a.token = e.token and a.started_at is not null);

-- name: lock_claims
-- Before jobs leave their claims: waits for a finish in flight (its key share), and gives the
-- next statement a snapshot that sees it.
select token from duetime.claim where token = any (%(tokens)s::bigint[]) order by token for update;

-- name: lock_unknown_claims
-- The jobs of this worker's claims that it does not know of, since the answer was lost, locked as
-- above. They may have been claimed ahead of their time, and must not be early now.
select c.token, u.job_id, u.attempt,
    greatest(least(c.claimed_at, duetime.now()) + make_interval(secs => %(lead)s), duetime.now())
from duetime.claim as c cross join lateral unnest(c.job_ids, c.attempts) as u(job_id, attempt)
where c.worker_id = %(worker)s and c.token <> all (%(known)s::bigint[])
order by c.token for update of c;

-- name: leave_claims
-- Take jobs out of their claims: an old token never matches them again. Cancelled ones end as
-- cancelled; returns the others, unless they had finished.
with leaving as (
    select l.token, array_agg(l.job_id) as job_ids
    from unnest(%(tokens)s::bigint[], %(jobs)s::bigint[]) as l(token, job_id) group by l.token
), left_over as (
    update duetime.claim as c
    set job_ids = array(select id from unnest(c.job_ids) as id where id <> all (l.job_ids)),
        attempts = array(select p.attempt from unnest(c.job_ids, c.attempts) as p(id, attempt)
                         where p.id <> all (l.job_ids))
    from leaving as l, duetime.claim as before
    where c.token = l.token and before.token = c.token
    returning c.token, c.worker_id, c.claimed_at, c.cancelled, c.cancel_reasons, l.job_ids as leaving,
        before.job_ids, before.attempts
), gone as materialized (
    select l.token, l.worker_id, l.claimed_at, u.job_id, u.attempt,
        coalesce(u.job_id = any (l.cancelled), false) as cancelled,
        l.cancel_reasons[array_position(l.cancelled, u.job_id)] as reason
    from left_over as l cross join lateral unnest(l.job_ids, l.attempts) as u(job_id, attempt)
    where u.job_id = any (l.leaving)
      and not exists (select from duetime.attempt as a
                      where a.job_id = u.job_id and a.token = l.token)
), recorded as (
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                 finished_at, error_code, error)
    select g.job_id, g.token, g.attempt, g.worker_id, 'cancelled', g.claimed_at, duetime.now(),
           'cancelled_given_back', g.reason -> 'facts' ->> 'text'
    from gone as g where g.cancelled
    returning job_id
), freed as (
    delete from duetime.job_key as k using recorded as e where k.job_id = e.job_id
), notified as materialized (
    select count(pg_notify('duetime.finished', e.job_id::text)) from recorded as e
    where exists (select from duetime.waiter as w where w.job_id = e.job_id)
)
select g.job_id from gone as g, notified where not g.cancelled;

-- name: drop_claims
-- Claims that all their jobs have left. A claim whose other jobs finished is closed by their finish.
delete from duetime.claim where token = any (%(tokens)s::bigint[]) and job_ids = '{}';

-- name: put_back
-- A job that was in quarantine stays there.
select duetime._wait_again(
    array_agg(r.job_id), array_agg(r.run_at), array_agg(r.attempt),
    array_agg(case when (select count(*) from duetime.attempt as a
                         where a.job_id = r.job_id and a.outcome = 'lost') >= 2 then 10 end),
    notify => false)
from unnest(%(jobs)s::bigint[], %(run_ats)s::timestamptz[], %(attempts)s::integer[])
    as r(job_id, run_at, attempt)
where r.job_id = any (%(left)s::bigint[]);

-- name: wake_for
select count(duetime.wake(queue)) from (
    select distinct queue from duetime.job where id = any (%(jobs)s::bigint[]) order by queue) as q;

-- name: park
insert into duetime.parked (job_id, queue, task, priority, run_at, attempt, partition, reason, parked_at)
select j.id, j.queue, j.task, j.priority, r.run_at, r.attempt, j.partition, %(reason)s::json, duetime.now()
from unnest(%(jobs)s::bigint[], %(run_ats)s::timestamptz[], %(attempts)s::smallint[])
    as r(job_id, run_at, attempt)
join duetime.job as j on j.id = r.job_id
where r.job_id = any (%(left)s::bigint[]);

-- name: complete
select duetime.complete(%s::json);

-- name: complete_many
-- As `duetime.complete`, for many jobs at once, at a third of the cost of each. Each is fenced by itself:
-- returns whether it was accepted, in the order given.
with given as materialized (
    select * from rows from (json_to_recordset(%s::json) as (
        job bigint, token bigint, started bigint, finished bigint, result json, log json))
        with ordinality as g(job, token, started, finished, result, log, place)
), held as materialized (
    select c.token, c.worker_id, c.claimed_at, c.job_ids, c.attempts from duetime.claim as c
    where c.token = any (array(select g.token from given as g)) order by c.token for key share
), accepted as (
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                 started_at, finished_at, result, log)
    select g.job, g.token, h.attempts[p.place], h.worker_id, 'completed', h.claimed_at,
        h.claimed_at + g.started * interval '1 microsecond',
        h.claimed_at + g.finished * interval '1 microsecond', g.result, g.log
    from given as g join held as h on h.token = g.token
    cross join lateral (select array_position(h.job_ids, g.job) as place) as p
    where p.place is not null
    on conflict (job_id, token) do nothing
    returning job_id, token
), freed as (
    delete from duetime.job_key as k using accepted as a where k.job_id = a.job_id and k.hold is null
), kept as (
    update duetime.job_key as k set held_until = duetime.now() + k.hold
    from accepted as a where k.job_id = a.job_id and k.hold is not null
), notified as materialized (
    select count(pg_notify('duetime.finished', a.job_id::text)) from accepted as a
    where exists (select from duetime.waiter as w where w.job_id = a.job_id)
)
select a.job_id is not null
from notified cross join given as g left join accepted as a on a.job_id = g.job and a.token = g.token
order by g.place;
