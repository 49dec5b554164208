-- What people do to schedules, by plain SQL: the same as `app.schedules["…"].pause()` and its siblings,
-- each in the caller's transaction with its audit event. SQL computes no times: what follows a change
-- is planned by a worker, within about a second.

-- The armed runs of schedules end: they are paused or changed, or (`all`) removed. Ticks that lie
-- ahead leave the ledger, so that they can be planned again. Runs that are due or claimed continue.
create or replace function duetime.supersede_runs(doc json) returns setof bigint
    language sql set search_path = pg_catalog, pg_temp as $$
    with input as materialized (
        select supersede_runs.doc as doc
    ), armed as materialized (
        select o.schedule_id, o.tick, o.job_id from duetime.schedule_tick as o cross join input as i
        where o.schedule_id = any (array(select value::bigint from json_array_elements_text(i.doc -> 'ids')))
          and o.job_id is not null and o.finished_at is null and o.begun_at is null
          and o.runs_as = 'fired'
          and (o.tick > duetime.now() or (i.doc ->> 'all')::boolean)
    ), ended as materialized (
        select duetime._end_waiting(array_agg(a.job_id), 'superseded',
                                    reasons => array_agg(i.doc -> 'reason'), unstarted => true) as job_id
        from armed as a cross join input as i
    ), past as (
        update duetime.schedule_tick as o
        set status = 'skipped', reason = i.doc -> 'reason', finished_at = duetime.now()
        from armed as a, input as i
        where o.schedule_id = a.schedule_id and o.tick = a.tick and o.tick <= duetime.now()
          and a.job_id in (select job_id from ended)
    ), ahead as (
        delete from duetime.schedule_tick as o using armed as a
        where o.schedule_id = a.schedule_id and o.tick = a.tick and o.tick > duetime.now()
          and a.job_id in (select job_id from ended)
    ), masked as (
        delete from duetime.schedule_tick as o using input as i
        where o.schedule_id = any (array(select value::bigint from json_array_elements_text(i.doc -> 'ids')))
          and o.tick > duetime.now() and o.job_id is null
    )
    select job_id from ended
$$;

-- Another time for an armed run: its tick, and so its key, stay. Without `expires_at` its task says
-- when it expires, as when it was armed. Zero rows: it has begun.
create or replace function duetime.move_run(doc json) returns setof bigint
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    return query
    with given as (
        select g.schedule_id, g.tick, g.run_at,
            coalesce(g.expires_at, g.run_at + t.expires) as expires_at
        from json_to_record(move_run.doc) as g(
            schedule_id bigint, tick timestamptz, run_at timestamptz, expires_at timestamptz)
        join duetime.schedule as s on s.id = g.schedule_id
        left join duetime.task as t on t.name = s.target
    ), moved as (
        update duetime.due as d set run_at = g.run_at
        from duetime.schedule_tick as o, given as g
        where o.schedule_id = g.schedule_id and o.tick = g.tick and d.job_id = o.job_id
          and d.attempt = 0
        returning d.job_id, d.queue
    ), recorded as (
        update duetime.schedule_tick as o set run_at = g.run_at from given as g, moved as m
        where o.job_id = m.job_id
    ), expiring as (
        update duetime.job as j set expires_at = g.expires_at from moved as m, given as g
        where j.id = m.job_id and j.expires_at is distinct from g.expires_at
    ), woken as materialized (
        select count(duetime.wake(m.queue, g.run_at)) from moved as m, given as g
    )
    select m.job_id from moved as m, woken;
end $$;

-- A moment as reasons, keys and the audit have it.
create or replace function duetime.format_time(moment timestamptz) returns text
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select replace(to_char(moment at time zone 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'), '.000000', '')
$$;

-- Lock the schedule of that name; return its id. No signature names a table's type: that would keep
-- the table from being dropped.
create or replace function duetime.check_actor(actor text) returns void
    language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if length(coalesce(actor, '')) not between 1 and 200 or actor !~ '\S' then
        raise exception 'duetime: the actor must have 1 to 200 characters' using errcode = '22023';
    end if;
end $$;

create or replace function duetime.lock_schedule(name text, actor text) returns bigint
    language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    found_id bigint;
begin
    perform duetime.check_actor(actor);
    select s.id into found_id from duetime.schedule as s where s.name = lock_schedule.name for update;
    if found_id is null then
        raise exception 'duetime: there is no schedule named %', quote_nullable(lock_schedule.name)
            using errcode = 'P0002';
    end if;
    return found_id;
end $$;

create or replace function duetime.pause_summary(
    paused_at timestamptz, paused_by text, reason text, until timestamptz) returns json
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select json_build_object(
        'paused_at', duetime.format_time(paused_at), 'paused_by', paused_by,
        'reason', reason, 'until', duetime.format_time(until))
$$;

-- The same as `paused_reason` in Python. `until`: the last tick of a row that represents several.
create or replace function duetime.paused_reason(
    paused_by text, reason text, failures integer, until timestamptz default null) returns json
    language sql stable set search_path = pg_catalog, pg_temp as $$
    select case when paused_by = 'duetime' and coalesce(reason, '') = ''
        then json_build_object('code', 'schedule_failing', 'facts', json_strip_nulls(json_build_object(
            'by', paused_by, 'failures', failures, 'until_tick', duetime.format_time(until))))
        else json_build_object('code', 'schedule_paused', 'facts', json_strip_nulls(json_build_object(
            'by', coalesce(paused_by, 'unknown'), 'text', nullif(reason, ''),
            'until_tick', duetime.format_time(until)))) end
$$;

-- Run no more, on any worker, until it is resumed or `until`; what runs goes on.
create or replace function duetime.pause_schedule(
    name text, reason text default '', until timestamptz default null, actor text default session_user)
    returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    locked_id constant bigint := duetime.lock_schedule(name, actor);
    known duetime.schedule;
    paused duetime.schedule;
    now constant timestamptz := duetime.now();
begin
    select * into strict known from duetime.schedule as s where s.id = locked_id;
    if until <= now then
        raise exception 'duetime: until % is in the past', duetime.format_time(until)
            using errcode = '22023';
    elsif until > '9000-01-01Z' then
        raise exception 'duetime: until must be at most in the year 9000' using errcode = '22023';
    end if;
    update duetime.schedule as s
    set paused_at = coalesce(s.paused_at, now), paused_by = actor,
        pause_reason = coalesce(reason, ''), paused_until = until, next_run_at = null, plain = null,
        -- Ticks that are not planned yet are decided on when it is resumed.
        planned_until = case when s.paused_at is null then least(s.planned_until, now)
                             else s.planned_until end,
        revision = s.revision + 1, updated_at = now
    where s.id = known.id
    returning * into paused;
    perform duetime.supersede_runs(json_build_object(
        'ids', json_build_array(known.id), 'reason', duetime.paused_reason(
            paused.paused_by, paused.pause_reason, paused.failures), 'all', false));
    insert into duetime.audit (actor, action, entity, before, after, reason)
    values (actor, 'schedule.pause', 'schedule:' || known.name, duetime.pause_summary(
                known.paused_at, known.paused_by, known.pause_reason, known.paused_until),
            duetime.pause_summary(
                paused.paused_at, paused.paused_by, paused.pause_reason, paused.paused_until), coalesce(pause_schedule.reason, ''));
end $$;

-- Resume. `missed`: catch up on the ticks of the pause by the policy `catch_up`; else they are skipped,
-- and share one row of the ledger. Resuming twice changes nothing.
create or replace function duetime.resume_schedule(
    name text, missed boolean default false, actor text default session_user)
    returns void language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    locked_id constant bigint := duetime.lock_schedule(name, actor);
    known duetime.schedule;
    now constant timestamptz := duetime.now();
begin
    select * into strict known from duetime.schedule as s where s.id = locked_id;
    if known.paused_at is null then
        return;
    end if;
    if not missed then
        insert into duetime.schedule_tick (schedule_id, tick, run_at, status, runs_as, reason, finished_at)
        values (known.id, known.planned_until, known.planned_until, 'skipped', 'fired',
                duetime.paused_reason(known.paused_by, known.pause_reason, known.failures, now), now)
        on conflict do nothing;
    end if;
    update duetime.schedule as s
    set paused_at = null, paused_by = null, pause_reason = null, paused_until = null, failures = 0,
        planned_until = case when missed then s.planned_until else now end,
        -- A worker plans it now.
        next_run_at = now, plain = null, revision = s.revision + 1, updated_at = now
    where s.id = known.id;
    insert into duetime.audit (actor, action, entity, before, after)
    values (actor, 'schedule.resume', 'schedule:' || known.name, duetime.pause_summary(
                known.paused_at, known.paused_by, known.pause_reason, known.paused_until),
            json_build_object('missed', missed));
end $$;

-- Run it once now, beside its timetable; return the job's id.
create or replace function duetime.trigger_schedule(
    name text, reason text default null, actor text default session_user)
    returns bigint language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    locked_id constant bigint := duetime.lock_schedule(name, actor);
    known duetime.schedule;
    now constant timestamptz := duetime.now();
    at_tick timestamptz := now;
    job bigint;
begin
    select * into strict known from duetime.schedule as s where s.id = locked_id;
    loop
        insert into duetime.job_key as k (task, key, job_id, hold)
        select known.target, 'tick:' || known.name || '@' || duetime.format_time(at_tick),
            nextval('duetime.job_id_seq'), interval '1 hour'
        where not exists (select from duetime.schedule_tick as o
                          where o.schedule_id = known.id and o.tick = at_tick)
        on conflict do nothing
        returning k.job_id into job;
        exit when job is not null;
        at_tick := at_tick + interval '1 microsecond';
    end loop;
    insert into duetime.schedule_tick (schedule_id, tick, run_at, status, runs_as, reason, job_id, enqueued_at)
    values (known.id, at_tick, now, 'armed', 'triggered',
            json_build_object('code', 'triggered', 'facts', json_build_object('by', actor)), job, now);
    perform duetime._add_jobs(array[duetime._new_job(
        job, known.target, now, known.args, queue => known.queue, priority => known.priority,
        key => 'tick:' || known.name || '@' || duetime.format_time(at_tick), hold => interval '1 hour',
        max_attempts => known.max_attempts, timeout => known.timeout,
        expires_at => now + coalesce(
            (known.policy ->> 'expires')::interval,
            (select o.expires from duetime._task_options(known.target) as o)),
        flow => nullif(known.kind = 'flow', false))]);
    insert into duetime.audit (actor, action, entity, reason)
    values (actor, 'schedule.trigger', 'schedule:' || known.name, trigger_schedule.reason);
    return job;
end $$;

-- Move the next run to a time; the runs after it stay. Returns the tick that was moved. The next run is the
-- one that is shown as such: one that is overdue is moved only if there is no other.
create or replace function duetime.reschedule(
    name text, at timestamptz, actor text default session_user)
    returns timestamptz language plpgsql set search_path = pg_catalog, pg_temp as $$
declare
    locked_id constant bigint := duetime.lock_schedule(name, actor);
    known duetime.schedule;
    now constant timestamptz := duetime.now();
    run duetime.open_run;
    moves_to constant timestamptz := greatest(at, now);
begin
    select * into strict known from duetime.schedule as s where s.id = locked_id;
    if at is null then
        raise exception 'duetime: the new time of a run must not be null' using errcode = '22023';
    elsif not at between '1970-01-01Z' and '9000-01-01Z' then
        raise exception 'duetime: the new time of a run must be finite, from the year 1970 to 9000'
            using errcode = '22023';
    end if;
    for run in
        select * from duetime.open_run as r
        where r.schedule_id = known.id and not r.begun and r.runs_as = 'fired'
        order by coalesce(r.run_at < known.next_run_at, false), r.run_at
    loop
        if exists (select from duetime.move_run(json_build_object(
            'schedule_id', known.id, 'tick', run.tick, 'run_at', moves_to,
            'expires_at', moves_to + (known.policy ->> 'expires')::interval)))
        then
            -- A worker arms one more in its place now.
            update duetime.schedule as s set next_run_at = now where s.id = known.id;
            insert into duetime.audit (actor, action, entity, before, after)
            values (actor, 'schedule.reschedule', 'schedule:' || known.name,
                    json_build_object('tick', duetime.format_time(run.tick),
                                      'run_at', duetime.format_time(run.run_at)),
                    json_build_object('tick', duetime.format_time(run.tick),
                                      'run_at', duetime.format_time(moves_to)));
            return run.tick;
        end if;
    end loop;
    raise exception 'duetime: the schedule % has no next run to move: it is paused, or has ended',
        quote_literal(known.name) using errcode = '22023';
end $$;
