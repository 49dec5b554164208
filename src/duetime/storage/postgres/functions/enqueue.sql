-- Enqueue as SQL functions: any language, psql and triggers can use them. They run with the rights of
-- their owner, so that a role which only enqueues needs no right on a table: EXECUTE is enough. Their
-- fixed `search_path` is what keeps others' functions and operators out.

-- Enqueue a JSON array of jobs, in the caller's transaction. Returns one row for each, in order: its
-- place, the job, and what was done: `created`, or if another job holds the key: `existing` (the job
-- that holds it), `replaced` (moved to the new time and arguments) or `rejected`.
create or replace function duetime.enqueue_many(jobs json, notify boolean default true)
    returns table (place bigint, job_id bigint, action text)
    language plpgsql security definer set search_path = pg_catalog, pg_temp as $$
#variable_conflict use_column
declare
    moment constant timestamptz := duetime.now();
    read constant record := duetime._read_jobs(jobs, moment);
    given record;
    existing record;
    -- The ids of the jobs to be made.
    fresh bigint[];
begin
    if not read.keyed then
        perform duetime._add_jobs(read.items, complete => true, notify => notify, moment => moment);
        return query select g.ordinality, g.id, 'created' from unnest(read.items) with ordinality as g;
        return;
    end if;
    -- In key order, so that two transactions with the same keys cannot deadlock.
    for given in
        select g.* from unnest(read.items) with ordinality as g
        order by g.key collate "C" nulls first, g.task collate "C", g.ordinality
    loop
        place := given.ordinality;
        job_id := given.id;
        action := case when given.key is null then 'created' end;
        while action is null loop
            insert into duetime.job_key as held (task, key, job_id, hold)
            values (given.task, given.key, given.id, given.hold)
            on conflict (task, key) do nothing;
            if not found then
                update duetime.job_key as k
                set job_id = given.id, hold = given.hold, held_until = null
                where k.task = given.task and k.key = given.key
                  and k.held_until <= duetime.now();
            end if;
            if found then
                action := 'created';
            else
                -- Only a replacement locks the key: otherwise a finish of its job need not wait for us.
                if given.on_conflict = 'replace' then
                    select k.job_id, k.held_until into existing from duetime.job_key as k
                    where k.task = given.task and k.key = given.key for update;
                else
                    select k.job_id, k.held_until into existing from duetime.job_key as k
                    where k.task = given.task and k.key = given.key;
                end if;
                continue when not found or existing.held_until <= duetime.now();
                if given.on_conflict = 'replace' then
                    if existing.job_id = any (fresh) then
                        perform duetime._add_jobs(
                            array(select g from unnest(read.items) as g where g.id = any (fresh)),
                            complete => true, notify => notify, moment => moment);
                        fresh := '{}';
                    end if;
                    -- A run of a flow that has begun is running, also while it waits.
                    update duetime.due as d
                    set run_at = given.run_at, queue = given.queue, priority = given.priority,
                        partition = given.partition
                    where d.job_id = existing.job_id
                      and not exists (select from duetime.flow_step as s where s.run_id = d.job_id);
                    if not found then
                        update duetime.parked as p
                        set run_at = given.run_at, queue = given.queue,
                            priority = given.priority, partition = given.partition
                        where p.job_id = existing.job_id
                          and not exists (select from duetime.flow_step as s where s.run_id = p.job_id);
                    end if;
                    if found then
                        update duetime.job as j
                        set args = given.args, queue = given.queue, priority = given.priority,
                            partition = given.partition, expires_at = given.expires_at
                        where j.id = existing.job_id;
                        job_id := existing.job_id;
                        action := 'replaced';
                        if notify then
                            perform duetime.wake(given.queue, given.run_at);
                        end if;
                    else
                        -- It is running or finished: the new job runs separately.
                        update duetime.job_key as k
                        set job_id = given.id, hold = given.hold, held_until = null
                        where k.task = given.task and k.key = given.key;
                        action := 'created';
                    end if;
                else
                    job_id := existing.job_id;
                    action := case given.on_conflict when 'reject' then 'rejected' else 'existing' end;
                end if;
            end if;
        end loop;
        if action = 'created' then
            fresh := fresh || given.id;
        end if;
        return next;
    end loop;
    if cardinality(fresh) > 0 then
        perform duetime._add_jobs(
            array(select g from unnest(read.items) as g where g.id = any (fresh)),
            complete => true, notify => notify, moment => moment);
    end if;
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

-- Whether JSON may contain what `_check_json` refuses: large numbers, and escapes of what is no character.
-- False of nearly all JSON, at the cost of one pass.
create or replace function duetime._is_suspect(given json) returns boolean
    language sql immutable as $$
    select given::text ~ '[0-9][eE]\+?[0-9]{3}|[0-9]{200}|\\u(0000|[dD][89a-fA-F])'
$$;

-- Raise an error if JSON has text that cannot be stored: NUL, or half of a surrogate pair. `what` is the subject
-- of the sentence. Its strings are checked alone: `jsonb` refuses numbers that are too small, too, which
-- Python reads as zero.
create or replace function duetime._check_text(given json, what text) returns void
    language plpgsql immutable as $$
begin
    perform jsonb_typeof(('[' || string_agg(m.found[1], ',') || ']')::jsonb)
    from regexp_matches(given::text, '"(?:[^"\\]|\\.)*"', 'g') as m(found);
exception when untranslatable_character or invalid_text_representation then
    raise exception 'duetime: % text that cannot be stored: NUL, or half of a surrogate pair', what
        using errcode = '22023';
end $$;

-- Raise an error if Python cannot read or store this JSON: a number that is infinite as a float, or is an
-- integer of more than 4300 digits; NUL, or half of a surrogate pair. `what` is the subject of the sentence.
create or replace function duetime._check_json(given json, what text) returns void
    language plpgsql immutable as $$
declare
    number text;
    is_large boolean;
begin
    if not coalesce(duetime._is_suspect(given), false) then
        return;
    end if;
    for number in
        select m.found[1] from regexp_matches(
            regexp_replace(given::text, '"(?:[^"\\]|\\.)*"', '""', 'g'),
            '-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?', 'g') as m(found)
    loop
        begin
            is_large := case
                when number !~ '[.eE]' then length(ltrim(number, '-')) > 4300
                when number ~ '[eE]-' then false
                else abs(number::numeric) >= 1.797693134862315808e308 end;
        exception when numeric_value_out_of_range then
            is_large := true;
        end;
        if is_large then
            raise exception 'duetime: % the number %, which is too large to be read', what, left(number, 40)
                using errcode = '22023', hint = 'Pass it as a string.';
        end if;
    end loop;
    perform duetime._check_text(given, what);
end $$;

-- The jobs of `enqueue_many`, checked, and whether any has a key. What a job does not name (a key
-- set to null is named) comes from its task, as the last deployed worker knows it.
create or replace function duetime._read_jobs(
    jobs json, moment timestamptz, out items duetime.new_job[], out keyed boolean)
    language plpgsql as $$
#variable_conflict use_column
declare
    task text;
    args json;
    queue text;
    priority smallint;
    run_at timestamptz;
    key text;
    on_conflict text;
    hold interval;
    partition text;
    max_attempts smallint;
    timeout interval;
    expires_at timestamptz;
    trace json;
    wait interval;
    timed boolean;
    most_bytes integer;
    flow boolean;
    lasts interval;
    unknown text;
    is_suspect constant boolean := duetime._is_suspect(jobs);
begin
    if json_typeof(jobs) is distinct from 'array' then
        raise exception 'duetime: jobs must be a JSON array' using errcode = '22023';
    end if;
    if is_suspect then
        -- Before anything is read: the server's own errors would not say what is wrong.
        perform duetime._check_text(jobs, 'a job contains');
    end if;
    if exists (select from json_array_elements(jobs) as e(item) where json_typeof(e.item) <> 'object') then
        raise exception 'duetime: each of the jobs must be a JSON object' using errcode = '22023';
    end if;
    -- A misspelt `delay` would run the job now.
    select k.name into unknown
    from json_array_elements(jobs) as e(item) cross join lateral json_object_keys(e.item) as k(name)
    where k.name not in ('task', 'args', 'queue', 'priority', 'run_at', 'delay', 'key', 'on_conflict', 'hold',
                         'partition', 'max_attempts', 'timeout', 'expires_at', 'expires_after', 'trace', 'flow')
    limit 1;
    if found then
        raise exception 'duetime: a job has no field named %', quote_literal(left(unknown, 60))
            using errcode = '22023',
            hint = 'See `duetime.enqueue_many` in the reference of SQL for the fields.';
    end if;
    keyed := false;
    for task, args, queue, priority, run_at, key, on_conflict, hold, partition, max_attempts,
        timeout, expires_at, trace, wait, timed, most_bytes, flow, lasts
    in
        select g.task, coalesce(g.args, '{}'), coalesce(g.queue, t.queue),
            coalesce(g.priority, t.priority),
            coalesce(g.run_at, moment + coalesce(g.delay, interval '0')),
            g.key, coalesce(g.on_conflict, 'return'), g.hold, g.partition,
            coalesce(g.max_attempts, t.max_attempts),
            case when e.item -> 'timeout' is null then t.timeout else g.timeout end,
            coalesce(g.expires_at,
                     coalesce(g.run_at, moment + coalesce(g.delay, interval '0'))
                     + case when e.item -> 'expires_after' is null then t.expires
                            else g.expires_after end),
            g.trace, g.delay, g.run_at is not null, t.max_args_bytes,
            nullif(coalesce(g.flow, t.flow), false), g.expires_after
        from json_array_elements(jobs) with ordinality as e(item, place)
        cross join lateral json_to_record(e.item) as g(
            task text, args json, queue text, priority smallint, run_at timestamptz,
            delay interval, key text, on_conflict text, hold interval, partition text,
            max_attempts smallint, timeout interval, expires_at timestamptz,
            expires_after interval, trace json, flow boolean)
        cross join lateral duetime._task_options(g.task) as t
        order by e.place
    loop
        if task is null or btrim(task) = '' or length(task) > 200 then
            raise exception 'duetime: the task must have 1 to 200 characters, not only spaces' using errcode = '22023';
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
            raise exception 'duetime: the queue name % must not contain commas, nor begin or end with a space',
                quote_literal(queue) using errcode = '22023';
        elsif on_conflict not in ('return', 'reject', 'replace') then
            raise exception 'duetime: on_conflict must be return, reject or replace, got %', on_conflict using errcode = '22023';
        elsif wait < interval '0' then
            raise exception 'duetime: delay must not be negative, got %', wait using errcode = '22023';
        elsif wait > interval '100 years' then
            raise exception 'duetime: delay must be at most 100 years, got %', wait using errcode = '22023';
        elsif lasts not between interval '0' and interval '100 years' then
            raise exception 'duetime: expires_after must be from 0 to 100 years, got %', lasts using errcode = '22023';
        elsif timed and wait is not null then
            raise exception 'duetime: run_at and delay cannot be combined' using errcode = '22023';
        elsif btrim(key) = '' or length(key) > 200 then
            raise exception 'duetime: the key must have 1 to 200 characters, not only spaces' using errcode = '22023';
        elsif btrim(partition) = '' or length(partition) > 200 then
            raise exception 'duetime: the partition must have 1 to 200 characters, not only spaces' using errcode = '22023';
        elsif key is null and hold is not null then
            raise exception 'duetime: hold requires a key' using errcode = '22023';
        elsif hold not between interval '0' and interval '100 years' then
            raise exception 'duetime: hold must be from 0 to 100 years, got %', hold using errcode = '22023';
        elsif not isfinite(run_at) or not run_at between '1970-01-01Z' and '9000-01-01Z' then
            raise exception 'duetime: run_at must be finite, from the year 1970 to 9000' using errcode = '22023';
        elsif not coalesce(expires_at between '1970-01-01Z' and '9100-01-01Z', true) then
            raise exception 'duetime: expires_at must be finite, from the year 1970 to 9000' using errcode = '22023';
        elsif not coalesce(timeout > interval '0' and timeout <= interval '100 years', true) then
            raise exception 'duetime: timeout must be positive and at most 100 years' using errcode = '22023';
        elsif starts_with(task, 'duetime.') or starts_with(key, 'tick:') or starts_with(key, 'flow:')
              or starts_with(key, 'flow-undo:') then
            if not duetime._may_write() then
                raise exception 'duetime: tasks that begin with "duetime." and keys that begin with "tick:", "flow:" or "flow-undo:" are reserved'
                    using errcode = '22023';
            end if;
        end if;
        if is_suspect then
            perform duetime._check_json(args, 'the args of task ' || task || ' contain');
            perform duetime._check_json(trace, 'the trace of task ' || task || ' contains');
        end if;
        keyed := keyed or key is not null;
        items := items || row(
            nextval('duetime.job_id_seq'), task, run_at, args, queue, priority, key, on_conflict,
            hold, partition, max_attempts, timeout, expires_at, trace, flow)::duetime.new_job;
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
    if answer.action = 'rejected' then
        raise exception 'duetime: job % already holds the key % of task %', answer.job_id, key, task
            using errcode = 'unique_violation';
    end if;
    return answer.job_id;
end $$;
revoke execute on function duetime.enqueue from public;
