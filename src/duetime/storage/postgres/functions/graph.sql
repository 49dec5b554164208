-- Graphs: how runs begin and end, and how their steps end. Each is one transaction and one round trip.

-- Claim jobs that this transaction made, for the worker that `doc` names: of those `here` up to `most`, from its
-- queues, unless they are paused or limited, or its lease has run out. No other worker is notified of them, only of
-- the others among `made`.
create or replace function duetime._claim_made(made bigint[], here bigint[], doc json)
    returns table (
        job_id bigint, token bigint, task text, queue text, priority smallint, args text,
        attempt integer, max_attempts smallint, run_at timestamptz, claimed_at timestamptz, key text,
        partition text, timeout interval, expires_at timestamptz, trace text)
    language plpgsql as $$
#variable_conflict use_column
declare
    moment constant timestamptz := duetime.now();
    one record;
begin
    return query
        with locked as materialized (
            select d.ctid as id from duetime.due as d
            where d.job_id = any (here) and d.run_at <= moment and d.priority < 10
              and d.queue = any (array(select json_array_elements_text(doc -> 'queues')))
              and not exists (
                select from duetime.queue as q
                where q.name = d.queue
                  and (q.paused_at is not null
                       or coalesce(q.running, q.per_partition, q.rate) is not null))
              and exists (select from duetime.worker as w
                          where w.id = (doc ->> 'worker')::bigint and w.lease_until > moment)
            limit (doc ->> 'most')::integer
            for update of d skip locked
        ), taken as (
            delete from duetime.due as d where d.ctid = any (array(select id from locked))
            returning d.queue, d.priority, d.run_at, d.job_id, d.attempt
        ), held as (
            insert into duetime.claim (token, worker_id, job_ids, attempts, claimed_at)
            select duetime._next_number('duetime.claim_token_seq'), (doc ->> 'worker')::bigint,
                   array_agg(t.job_id), array_agg((t.attempt + 1)::smallint), moment
            from taken as t having count(*) > 0
            returning claim.token
        )
        select t.job_id, h.token, j.task, t.queue, t.priority::smallint,
            case when octet_length(j.args::text) <= (doc ->> 'most_args')::integer then j.args::text end,
            t.attempt + 1, j.max_attempts::smallint, t.run_at::timestamptz, moment, j.key, j.partition,
            j.timeout::interval, j.expires_at::timestamptz, j.trace::text
        from held as h cross join taken as t
        cross join lateral (select * from duetime.job where job.id = t.job_id offset 0) as j;
    if (doc ->> 'notify')::boolean then
        for one in
            select d.queue from duetime.due as d
            where d.job_id = any (made) and d.run_at <= moment group by d.queue order by d.queue
        loop
            perform duetime.wake(one.queue);
        end loop;
    end if;
end $$;

-- Begin a run of a graph whose first steps need nothing but their jobs: store its graph and its rows, make the
-- jobs, and suspend the run. `doc` has
--   run, token, started, finished, deadline:  the run's claim, as a suspension has it
--   shape:   the graph, as text
--   rows:    of its steps and its end; `job` is the place of a row's job among `jobs`, from 1
--   worker, queues, most, here, notify:  see `_claim_made`; `here` are places of jobs
-- Returns whether it did: not if the run has begun before, is to be cancelled, was sent a signal, or is
-- not ours; whether its claim is closed; and the claimed jobs.
create or replace function duetime._begin_run(doc json)
    returns table (
        has_begun boolean, is_closed boolean,
        job_id bigint, token bigint, task text, queue text, priority smallint, args text,
        attempt integer, max_attempts smallint, run_at timestamptz, claimed_at timestamptz, key text,
        partition text, timeout interval, expires_at timestamptz, trace text)
    language plpgsql as $$
#variable_conflict use_column
declare
    run constant bigint := (doc ->> 'run')::bigint;
    of_token constant bigint := (doc ->> 'token')::bigint;
    held record;
    ids bigint[];
begin
    perform duetime._lock_runs_briefly(array[run]);
    select c.worker_id, c.claimed_at, c.attempts[array_position(c.job_ids, run)] as attempt into held
    from duetime.claim as c
    where c.token = of_token and run = any (c.job_ids)
      and not coalesce(run = any (c.cancelled), false)
      and not exists (select from duetime.attempt as a where a.job_id = run and a.token = of_token)
      and not exists (select from duetime.flow_run as f where f.run_id = run)
      and not exists (select from duetime.flow_step as s where s.run_id = run)
      and not exists (select from duetime.flow_signal as f where f.run_id = run)
    for share of c;
    has_begun := found;
    is_closed := false;
    if not has_begun then
        return next;
        return;
    end if;
    insert into duetime.flow_run (run_id, shape) values (run, (doc ->> 'shape')::json);
    ids := array(select e.job_id from duetime.enqueue_many(doc -> 'jobs', false) as e order by e.place);
    insert into duetime.flow_step (run_id, seq, kind, name, state, pending, job_id)
    select run, g.seq, g.kind, g.name, g.state, g.pending, ids[g.job]
    from json_to_recordset(doc -> 'rows') as g(
        seq integer, kind text, name text, state text, pending integer, job integer);
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at, started_at,
                                 finished_at)
    values (run, of_token, held.attempt, held.worker_id, 'snoozed', held.claimed_at,
            held.claimed_at + (doc ->> 'started')::bigint * interval '1 microsecond',
            held.claimed_at + (doc ->> 'finished')::bigint * interval '1 microsecond');
    perform duetime._wait_again(
        array[run],
        array[coalesce((doc ->> 'deadline')::timestamptz, '9000-01-01 00:00Z')],
        array[0]);
    delete from duetime.claim as c
    where c.token = of_token and cardinality(c.job_ids) = 1 and c.queue is null
    returning true into is_closed;
    return next;
    return query select null::boolean, null::boolean, c.* from duetime._claim_made(
        ids, array(select ids[value::integer] from json_array_elements_text(doc -> 'here')), doc) as c;
end $$;

-- End a run of a graph all of whose steps have completed, or were skipped: nothing is left to do, nor to undo. `doc`
-- has the run and its token, its graph as text, the number of its end, and the numbers of its last steps
-- (`leaves`). Returns the outputs of these; nothing, if the run has to do something else first.
create or replace function duetime._end_run(doc json) returns table (seq integer, output text)
    language plpgsql as $$
#variable_conflict use_column
declare
    run constant bigint := (doc ->> 'run')::bigint;
    of_token constant bigint := (doc ->> 'token')::bigint;
    last constant integer := (doc ->> 'end')::integer;
begin
    perform duetime._lock_runs_briefly(array[run]);
    perform from duetime.claim as c
    where c.token = of_token and run = any (c.job_ids)
      and not coalesce(run = any (c.cancelled), false)
      and not exists (select from duetime.attempt as a where a.job_id = run and a.token = of_token)
      and exists (select from duetime.flow_run as f
                  where f.run_id = run and f.shape::text = doc ->> 'shape')
      and not exists (select from duetime.flow_step as s
                      where s.run_id = run and s.seq < last
                        and (s.seq = 0 or s.state not in ('completed', 'skipped', 'registered')
                             or (s.seq > 0 and s.state = 'registered')))
    for key share of c;
    if not found then
        return;
    end if;
    update duetime.flow_step as s
    set state = case when s.seq < 0 then 'skipped' else 'completed' end, finished_at = duetime.now()
    where s.run_id = run and (s.seq = last or (s.seq < 0 and s.state = 'registered'));
    return query
        select s.seq, s.output::text from duetime.flow_step as s
        where s.run_id = run
          and s.seq = any (array(select value::integer from json_array_elements_text(doc -> 'leaves')));
end $$;

-- Steps have ended: complete their jobs, each fenced by itself, write what became of them, count down what
-- waits for them, and start what waits for nothing more. One transaction and one round trip: of all steps
-- that end at the same time exactly one sees a count reach zero, since each run is locked. `doc` has
--   ends:    in the order of their tokens; `finish` is what `complete` takes
--   stops:   the ends (`place`) that finish their runs early, as rows
--   undos:   rows of compensations, for ends that completed
--   counts:  what waits for an end, by how much it is counted down, and the job that starts then. Without
--            a job the run's own job goes on
--   worker, queues, most, notify:  see `_claim_made`; `here` says of a count that the worker knows the task
-- Returns a row for each end: whether it was accepted, null if another transaction has locked its run; and
-- whether its claim is closed. Then the claimed jobs.
create or replace function duetime._end_steps(doc json)
    returns table (
        place integer, is_accepted boolean, is_closed boolean,
        job_id bigint, token bigint, task text, queue text, priority smallint, args text,
        attempt integer, max_attempts smallint, run_at timestamptz, claimed_at timestamptz, key text,
        partition text, timeout interval, expires_at timestamptz, trace text)
    language plpgsql as $$
#variable_conflict use_column
declare
    free bigint[];
    ours integer[] := '{}';
    one record;
    jobs json[] := '{}';
    runs bigint[] := '{}';
    seqs integer[] := '{}';
    ids bigint[] := '{}';
    here bigint[] := '{}';
    woken bigint[] := '{}';
begin
    -- In a statement of its own: those below see what was committed before the lock was taken.
    free := array(select duetime._try_lock_runs(array(
        select distinct (e.value ->> 'run')::bigint from json_array_elements(doc -> 'ends') as e)));
    for one in
        select e.place, (e.value ->> 'run')::bigint as run, e.value -> 'finish' as finish,
               coalesce((e.value ->> 'wake')::boolean, false) as wakes
        from json_array_elements(doc -> 'ends') with ordinality as e(value, place) order by e.place
    loop
        place := one.place - 1;
        is_accepted := case when one.run = any (free) then duetime.complete(one.finish) end;
        is_closed := false;
        if is_accepted then
            ours := ours || place;
            -- Nothing else is held under this token. A limited queue's claim is closed by its worker.
            delete from duetime.claim as c
            where c.token = (one.finish ->> 'token')::bigint and cardinality(c.job_ids) = 1
              and c.queue is null
            returning true into is_closed;
            if one.wakes then
                woken := woken || one.run;
            end if;
        end if;
        return next;
    end loop;
    if ours = '{}' then
        return;
    end if;

    insert into duetime.flow_step (run_id, seq, kind, name, state, output, started_at)
    select g.run, 0, g.kind, g.name, 'waiting', g.output, duetime.now()
    from json_to_recordset(doc -> 'stops') as g(
        place integer, run bigint, kind text, name text, output json)
    where g.place = any (ours)
    on conflict (run_id, seq) do nothing;

    insert into duetime.flow_step (run_id, seq, kind, name, state)
    select g.run, g.seq, g.kind, g.name, g.state
    from json_to_recordset(doc -> 'undos') as g(
        place integer, run bigint, seq integer, kind text, name text, state text)
    where g.place = any (ours)
    on conflict (run_id, seq) do nothing;

    update duetime.flow_step as s
    set state = g.state, output = g.output, error_code = null, error = null, until = null,
        attempt = g.attempt, started_at = g.started_at, finished_at = g.finished_at
    from rows from (json_to_recordset(doc -> 'ends') as (
            run bigint, seq integer, state text, output json, attempt smallint,
            started_at timestamptz, finished_at timestamptz))
        with ordinality as g(run, seq, state, output, attempt, started_at, finished_at, place)
    where s.run_id = g.run and s.seq = g.seq and g.place - 1 = any (ours);

    -- Of runs that stop, or whose job has ended, nothing is counted: see `graph_write_and_release`.
    for one in
        with counted as materialized (
            select c.run, c.seq, sum(c.by)::integer as by, (array_agg(c.job))[1] as job,
                   bool_and(coalesce(c.here, false)) as here
            from json_to_recordset(doc -> 'counts') as c(
                place integer, run bigint, seq integer, by integer, job json, here boolean)
            where c.place = any (ours)
            group by c.run, c.seq
        )
        update duetime.flow_step as s
        set pending = s.pending - case when o.stops then 0 else g.by end
        from counted as g
        cross join lateral (
            select exists (select from duetime.flow_step as f where f.run_id = g.run and f.seq = 0)
                or (not exists (select from duetime.due as d where d.job_id = g.run)
                    and (select a.outcome from duetime.attempt as a where a.job_id = g.run
                         order by a.token desc limit 1)
                        in ('completed', 'dead', 'cancelled', 'superseded', 'expired')) as stops
            offset 0) as o
        where s.run_id = g.run and s.seq = g.seq
        returning s.run_id, s.seq, s.pending, s.state, coalesce(o.stops, false) as stops, g.job, g.here
    loop
        if one.stops or (one.pending = 0 and one.job is null) then
            woken := woken || one.run_id;
        elsif one.pending = 0 and one.state = 'pending' then
            jobs := jobs || one.job;
            runs := runs || one.run_id;
            seqs := seqs || one.seq;
            here := here || case when one.here then one.run_id end;
        end if;
    end loop;

    if cardinality(jobs) > 0 then
        ids := array(select e.job_id from duetime.enqueue_many(array_to_json(jobs), false) as e
                     order by e.place);
        here := array(select g.job from unnest(ids, here) as g(job, run) where g.run is not null);
        update duetime.flow_step as s
        set state = 'running', job_id = g.job, output = null, error_code = null, error = null,
            until = null, finished_at = null
        from unnest(runs, seqs, ids) as g(run, seq, job)
        where s.run_id = g.run and s.seq = g.seq;
    end if;
    if cardinality(woken) > 0 then
        update duetime.due as d set run_at = duetime.now()
        where d.job_id = any (woken) and d.run_at > duetime.now();
        ids := ids || woken;
        here := here || woken;
    end if;
    return query select null::integer, null::boolean, null::boolean, c.*
                 from duetime._claim_made(ids, here, doc) as c;
end $$;
