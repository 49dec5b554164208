-- Enqueue as SQL functions: any language, psql and triggers can use them. They run with the rights of
-- their owner, so that a role which only enqueues needs no right on a table: EXECUTE is enough. Their
-- fixed `search_path` is what keeps others' functions and operators out.

-- Enqueue a JSON array of jobs, in the caller's transaction. One row comes back for each, in
-- order: its place, the job, and `created`, or for a key that is held: `existing` (the job that
-- holds it), `replaced` (moved to the new time and arguments) or `rejected`.
create or replace function duetime.enqueue_many(jobs json, notify boolean default true)
    returns table (place bigint, job_id bigint, outcome text)
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    given record;
    existing record;
    moment constant timestamptz := duetime.now();
begin
    if json_typeof(jobs) is distinct from 'array' then
        raise exception 'duetime: jobs must be a JSON array' using errcode = '22023';
    end if;

    return query
    with item as materialized (
        select nextval('duetime.job_id_seq') as id, i.*
        from duetime._read_jobs(jobs, moment) as i
        where i.key is null
    ), inserted as (
        insert into duetime.job (id, task, queue, priority, args, partition, max_attempts,
                                 timeout, expires_at, created_at, trace)
        select i.id, i.task, i.queue, i.priority, i.args, i.partition, i.max_attempts,
               i.timeout, i.expires_at, moment, i.trace
        from item as i
    ), waiting as (
        insert into duetime.due (queue, priority, run_at, job_id, partition)
        select i.queue, i.priority, i.run_at, i.id, i.partition from item as i
    ), woken as materialized (
        select count(duetime.wake(q.queue, q.run_at))
        from (select i.queue, min(i.run_at) as run_at from item as i where notify
              group by i.queue order by i.queue) as q
    )
    select i.place, i.id, 'created' from item as i, woken order by i.place;

    if not exists (select from json_array_elements(jobs) as item where item ->> 'key' is not null) then
        return;
    end if;
    -- In key order, so that two transactions with the same keys cannot deadlock.
    for given in
        select * from duetime._read_jobs(jobs, moment) as i
        where i.key is not null order by i.key collate "C", i.task collate "C", i.place
    loop
        place := given.place;
        outcome := null;
        while outcome is null loop
            job_id := nextval('duetime.job_id_seq');
            insert into duetime.job_key as held (task, key, job_id, hold)
            values (given.task, given.key, job_id, given.hold)
            on conflict (task, key) do nothing;
            if not found then
                update duetime.job_key as k
                set job_id = enqueue_many.job_id, hold = given.hold, held_until = null
                where k.task = given.task and k.key = given.key
                  and k.held_until <= duetime.now();
            end if;
            if found then
                outcome := 'created';
            else
                -- Only a replacement locks the key: else the end of its job need not wait for us.
                if given.on_conflict = 'replace' then
                    select k.job_id, k.held_until into existing from duetime.job_key as k
                    where k.task = given.task and k.key = given.key for update;
                else
                    select k.job_id, k.held_until into existing from duetime.job_key as k
                    where k.task = given.task and k.key = given.key;
                end if;
                continue when not found or existing.held_until <= duetime.now();
                if given.on_conflict = 'replace' then
                    update duetime.due as d
                    set run_at = given.run_at, queue = given.queue, priority = given.priority,
                        partition = given.partition
                    where d.job_id = existing.job_id;
                    if not found then
                        update duetime.parked as p
                        set run_at = given.run_at, queue = given.queue,
                            priority = given.priority, partition = given.partition
                        where p.job_id = existing.job_id;
                    end if;
                    if found then
                        update duetime.job as j
                        set args = given.args, queue = given.queue, priority = given.priority,
                            partition = given.partition, expires_at = given.expires_at
                        where j.id = existing.job_id;
                        job_id := existing.job_id;
                        outcome := 'replaced';
                    else
                        -- It runs already, or is done: what was asked for needs a run of its own.
                        update duetime.job_key as k
                        set job_id = enqueue_many.job_id, hold = given.hold, held_until = null
                        where k.task = given.task and k.key = given.key;
                        outcome := 'created';
                    end if;
                else
                    job_id := existing.job_id;
                    outcome := case given.on_conflict when 'reject' then 'rejected' else 'existing' end;
                end if;
            end if;
        end loop;
        if outcome = 'created' then
            insert into duetime.job (id, task, queue, priority, args, key, hold, partition,
                                     max_attempts, timeout, expires_at, created_at, trace)
            values (job_id, given.task, given.queue, given.priority, given.args, given.key,
                    given.hold, given.partition, given.max_attempts, given.timeout,
                    given.expires_at, moment, given.trace);
            insert into duetime.due (queue, priority, run_at, job_id, partition)
            values (given.queue, given.priority, given.run_at, job_id, given.partition);
        end if;
        if notify and outcome in ('created', 'replaced') then
            perform duetime.wake(given.queue, given.run_at);
        end if;
        return next;
    end loop;
end $$;

revoke execute on function duetime.enqueue_many from public;

-- Whether the role that called us may write to the tables itself: only then it makes jobs of tasks that
-- are ours, or with the keys of schedules' runs. (While a function runs with its owner's rights,
-- `current_user` is the owner.)
create or replace function duetime._may_write() returns boolean
    language sql stable as $$
    select has_table_privilege(coalesce(nullif(current_setting('role'), 'none'), session_user),
                               'duetime.job', 'insert')
$$;

-- The jobs of `enqueue_many`, checked. What a job does not name (a key set to null is named)
-- comes from its task, as the last deployed worker knows it.
create or replace function duetime._read_jobs(jobs json, moment timestamptz)
    returns table (
        place bigint, task text, args json, queue text, priority smallint, run_at timestamptz,
        key text, on_conflict text, hold interval, partition text, max_attempts smallint,
        timeout interval, expires_at timestamptz, trace json)
    language plpgsql as $$
#variable_conflict use_column
declare
    wait interval;
    timed boolean;
    most_bytes integer;
begin
    for place, task, args, queue, priority, run_at, key, on_conflict, hold, partition,
        max_attempts, timeout, expires_at, trace, wait, timed, most_bytes
    in
        select e.place, g.task, coalesce(g.args, '{}'),
            coalesce(g.queue, t.queue, 'default'),
            coalesce(g.priority, t.priority, 5::smallint),
            coalesce(g.run_at, moment + coalesce(g.delay, interval '0')),
            g.key, coalesce(g.on_conflict, 'return'), g.hold, g.partition,
            coalesce(g.max_attempts, t.max_attempts, 3::smallint),
            case when e.item -> 'timeout' is null then t.timeout else g.timeout end,
            coalesce(g.expires_at,
                     coalesce(g.run_at, moment + coalesce(g.delay, interval '0'))
                     + case when e.item -> 'expires_after' is null then t.expires
                            else g.expires_after end),
            g.trace, g.delay, g.run_at is not null, coalesce(t.max_args_bytes, 1048576)
        from json_array_elements(jobs) with ordinality as e(item, place)
        cross join lateral json_to_record(e.item) as g(
            task text, args json, queue text, priority smallint, run_at timestamptz,
            delay interval, key text, on_conflict text, hold interval, partition text,
            max_attempts smallint, timeout interval, expires_at timestamptz,
            expires_after interval, trace json)
        left join duetime.task as t on t.name = g.task
        order by e.place
    loop
        if task is null or btrim(task) = '' or length(task) > 200 then
            raise exception 'duetime: a job needs a task, of 1 to 200 characters, not blanks alone' using errcode = '22023';
        elsif json_typeof(args) <> 'object' then
            raise exception 'duetime: the args of task % must be a JSON object', task using errcode = '22023';
        elsif octet_length(args::text) > most_bytes then
            raise exception 'duetime: the args of task % take % bytes of JSON, more than %', task,
                octet_length(args::text), most_bytes using errcode = '22023',
                hint = 'Store the data elsewhere and pass a reference, or raise max_args_bytes.';
        elsif priority not between 0 and 9 then
            raise exception 'duetime: priority must be 0 (first) to 9 (last), got %', priority using errcode = '22023';
        elsif max_attempts not between 1 and 10000 then
            raise exception 'duetime: max_attempts must be 1 to 10000, got %', max_attempts using errcode = '22023';
        elsif queue = '' or length(queue) > 200 then
            raise exception 'duetime: the queue must have 1 to 200 characters' using errcode = '22023';
        elsif queue ~ '^\s|\s$|,' then
            raise exception 'duetime: the queue cannot be named %: leave out commas, and blanks at the beginning and the end',
                quote_literal(queue) using errcode = '22023';
        elsif on_conflict not in ('return', 'reject', 'replace') then
            raise exception 'duetime: on_conflict must be return, reject or replace, got %', on_conflict using errcode = '22023';
        elsif wait < interval '0' then
            raise exception 'duetime: delay must not be negative, got %', wait using errcode = '22023';
        elsif timed and wait is not null then
            raise exception 'duetime: give either run_at or delay, not both' using errcode = '22023';
        elsif btrim(key) = '' or length(key) > 200 then
            raise exception 'duetime: the key must have 1 to 200 characters, not blanks alone' using errcode = '22023';
        elsif btrim(partition) = '' or length(partition) > 200 then
            raise exception 'duetime: the partition must have 1 to 200 characters, not blanks alone' using errcode = '22023';
        elsif key is null and hold is not null then
            raise exception 'duetime: hold needs a key' using errcode = '22023';
        elsif hold not between interval '0' and interval '100 years' then
            raise exception 'duetime: hold must be from 0 to 100 years, got %', hold using errcode = '22023';
        elsif not isfinite(run_at) or not run_at between '1970-01-01Z' and '9000-01-01Z' then
            raise exception 'duetime: run_at must be finite, from the year 1970 to 9000' using errcode = '22023';
        elsif not coalesce(expires_at between '1970-01-01Z' and '9100-01-01Z', true) then
            raise exception 'duetime: expires_at must be finite, from the year 1970 to 9000' using errcode = '22023';
        elsif not coalesce(timeout > interval '0' and timeout <= interval '100 years', true) then
            raise exception 'duetime: timeout must be positive and at most 100 years' using errcode = '22023';
        elsif starts_with(task, 'duetime.') or starts_with(key, 'tick:') then
            if not duetime._may_write() then
                raise exception 'duetime: tasks that begin with "duetime." and keys that begin with "tick:" are reserved'
                    using errcode = '22023';
            end if;
        end if;
        return next;
    end loop;
end $$;

-- Enqueue one job: `select duetime.enqueue('send_mail', '{"to": "ann"}')`. Returns its id, or
-- the id of the job that holds the key; with on_conflict 'reject' that is an error.
create or replace function duetime.enqueue(
    task text, args json default '{}', queue text default null, priority integer default null,
    run_at timestamptz default null, delay interval default null, key text default null,
    on_conflict text default 'return', hold interval default null, partition text default null,
    max_attempts integer default null, timeout interval default null,
    expires_at timestamptz default null) returns bigint
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
declare
    answer record;
begin
    -- What is null here is not named, so that the task's own options hold.
    select * into strict answer from duetime.enqueue_many((
        '[{"args": ' || coalesce(args, '{}')::text || ', ' || substr(json_strip_nulls(
            json_build_object(
                'task', task, 'queue', queue, 'priority', priority, 'run_at', run_at,
                'delay', delay, 'key', key, 'on_conflict', on_conflict, 'hold', hold,
                'partition', partition, 'max_attempts', max_attempts, 'timeout', timeout,
                'expires_at', expires_at))::text, 2) || ']')::json);
    if answer.outcome = 'rejected' then
        raise exception 'duetime: job % already holds the key % of task %', answer.job_id, key, task
            using errcode = 'unique_violation';
    end if;
    return answer.job_id;
end $$;
revoke execute on function duetime.enqueue from public;
