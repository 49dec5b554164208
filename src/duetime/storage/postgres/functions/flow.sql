-- Flows: start, signal and wake their runs.

-- Suspending a run and waking one both take this lock first: the second sees what the first did. In the
-- order of the runs, so that there is no deadlock.
create or replace function duetime._lock_runs(runs bigint[]) returns void
    language sql as $$
    select count(pg_advisory_xact_lock(hashtext('duetime.flow'), (r.run & 2147483647)::integer))
    from (select unnest(runs) as run order by 1) as r;
$$;

-- The same, but not for longer than a moment: then it is an error (`lock_not_available`). A transaction that
-- signals a run may stay open for any time.
create or replace function duetime._lock_runs_briefly(runs bigint[]) returns void
    language sql set lock_timeout = '20ms' as $$
    select duetime._lock_runs(runs);
$$;

-- The same for those of them that no other transaction has locked; returns these.
create or replace function duetime._try_lock_runs(runs bigint[]) returns setof bigint
    language sql as $$
    select r.run from (select unnest(runs) as run order by 1) as r
    where pg_try_advisory_xact_lock(hashtext('duetime.flow'), (r.run & 2147483647)::integer);
$$;

-- Make suspended runs due now. What runs, or has ended, is left alone.
create or replace function duetime._wake_runs(runs bigint[]) returns void
    language plpgsql as $$
declare
    count bigint;
begin
    with woken as (
        update duetime.due as d set run_at = duetime.now()
        where d.job_id = any (runs) and d.run_at > duetime.now()
        returning d.queue
    )
    select count(duetime.wake(q.queue)) into count
    from (select w.queue from woken as w group by w.queue order by w.queue) as q;
end $$;

-- Send a signal to a run. Returns `sent`; `repeated`, if the run has one of this name and key;
-- `missing`, if no job has this id or its task is not a flow; or the state of a run that has ended.
create or replace function duetime._signal_flow(
    run bigint, name text, data json, key text, by text) returns text
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    state text;
begin
    perform duetime._lock_runs(array[run]);
    select j.state into state from duetime.jobs as j
    where j.id = run and (select r.flow from duetime.job as r where r.id = run);
    if state is null then
        return 'missing';
    end if;
    if state in ('completed', 'dead', 'cancelled', 'superseded', 'expired') then
        -- A sender that repeats it, since the answer was lost, learns that it was sent.
        return case when exists (select from duetime.flow_signal as f
                                 where f.run_id = run and f.name = _signal_flow.name
                                   and f.key = _signal_flow.key)
                    then 'repeated' else state end;
    end if;
    insert into duetime.flow_signal (run_id, name, key, data, sent_at, sent_by)
    values (run, name, key, data, duetime.now(), by)
    on conflict do nothing;
    if not found then
        return 'repeated';
    end if;
    if exists (select from duetime.flow_step as s
               where s.run_id = run and s.kind = 'signal' and s.state = 'waiting'
                 and s.name = _signal_flow.name) then
        perform duetime._wake_runs(array[run]);
    end if;
    return 'sent';
end $$;
revoke execute on function duetime._signal_flow from public;

-- Send a signal to a run: `select duetime.signal_flow(42, 'approved', 'true')`. It is kept until the run
-- waits for it. False: the run already has a signal of this name and key, and nothing is changed.
create or replace function duetime.signal_flow(
    run bigint, name text, data json default null, key text default null) returns boolean
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    answer text;
begin
    if run is null or coalesce(name, '') = '' or length(name) > 200 or key = '' or length(key) > 200 then
        raise exception 'duetime: a signal needs a run, and a name of 1 to 200 characters'
            using errcode = '22023';
    end if;
    perform duetime._check_json(data, 'the data of a signal contains');
    answer := duetime._signal_flow(run, name, data, key, 'role:' || session_user);
    if answer = 'missing' then
        raise exception 'duetime: there is no run %', run using errcode = 'P0002';
    elsif answer not in ('sent', 'repeated') then
        raise exception 'duetime: run % has ended (%) and takes no signals', run, answer
            using errcode = '22023';
    end if;
    return answer = 'sent';
end $$;
revoke execute on function duetime.signal_flow from public;

-- Start a flow: `select duetime.start_flow('order', '{"order_id": 7}', key => 'order:7')`. Returns the run.
create or replace function duetime.start_flow(
    flow text, args json default '{}', key text default null, queue text default null,
    run_at timestamptz default null) returns bigint
    language sql security definer set search_path = pg_catalog, pg_temp as $$
    -- What is null is not named, so that the flow's own options hold. Nulls in `args` stay.
    select e.job_id from duetime.enqueue_many((
        '[{"args": ' || coalesce(start_flow.args, '{}')::text || ', ' || substr(json_strip_nulls(
            json_build_object('task', start_flow.flow, 'queue', start_flow.queue,
                              'key', start_flow.key, 'run_at', start_flow.run_at, 'flow', true)
        )::text, 2) || ']')::json) as e;
$$;
revoke execute on function duetime.start_flow from public;
