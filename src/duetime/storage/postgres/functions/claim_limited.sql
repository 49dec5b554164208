-- Claim from a queue with limits. The queue's row is locked first; each statement after it
-- sees what the last claimer committed, so counts are exact however many workers race.
-- One `claim` row for each job: running jobs are counted by rows. `open_at` is when a rate limit
-- admits the next one. Nothing is claimed if the worker's lease has run out, which may have happened
-- while this waited for the queue's row.
create or replace function duetime.claim_limited(
    worker bigint, of_queue text, want integer, quarantined boolean default false)
    returns table (
        claimed_at timestamptz, token bigint, job_id bigint, task text, queue text,
        priority smallint, args text, attempt smallint, max_attempts smallint,
        run_at timestamptz, key text, partition text, timeout interval, expires_at timestamptz,
        trace text, open_at timestamptz)
    language plpgsql as $$
#variable_conflict use_column
declare
    rules record;
    room integer := want;
    most integer;
    full_partitions text[] := '{}';
    moment timestamptz;
    picked record;
    taken integer := 0;
begin
    select * into rules from duetime.queue as q where q.name = of_queue for update;
    if not found or rules.paused_at is not null then
        return;
    end if;
    moment := duetime.now();
    if not exists (
        select from duetime.worker as w where w.id = worker and w.lease_until > moment) then
        return;
    end if;
    if rules.running is not null then
        room := least(room, rules.running
            - (select count(*) from duetime.claim as c where c.queue = of_queue)::integer);
    end if;
    if rules.rate is not null then
        delete from duetime.rate_use as r
        where r.queue = of_queue and r.at <= moment - rules.period;
        -- The clock was set back since: what was claimed before counts for one more period.
        update duetime.rate_use as r set at = moment where r.queue = of_queue and r.at > moment;
        room := least(room, rules.rate - coalesce(
            (select sum(r.used) from duetime.rate_use as r where r.queue = of_queue), 0)::integer);
        if room <= 0 then
            open_at := (select min(r.at) from duetime.rate_use as r where r.queue = of_queue)
                + rules.period;
        end if;
    end if;
    if room <= 0 then
        if open_at is not null then return next; end if;
        return;
    end if;
    if rules.per_partition is not null then
        full_partitions := array(
            select c.partition from duetime.claim as c
            where c.queue = of_queue and c.partition is not null
            group by c.partition having count(*) >= rules.per_partition);
    end if;
    most := case when rules.per_partition is null then room else greatest(room * 10, 1000) end;

    for picked in
        with seen as materialized (
            -- One probe of due_pkey for each priority: jobs that are due later are not read.
            select d.priority, d.run_at, d.job_id, d.attempt, d.partition
            from generate_series(case when quarantined then 10 else 0 end,
                                 case when quarantined then 10 else 9 end) as p(priority)
            cross join lateral (
                select due.priority, due.run_at, due.job_id, due.attempt, due.partition
                from duetime.due
                where due.queue = of_queue and due.priority = p.priority and due.run_at <= moment
                  and (due.partition is null or due.partition <> all (full_partitions))
                order by due.run_at, due.job_id
                limit most
            ) as d
            limit most
        ), ranked as (
            select s.*,
                row_number() over (partition by s.partition
                                   order by s.priority, s.run_at, s.job_id)
                + (select count(*) from duetime.claim as c
                   where c.queue = of_queue and c.partition = s.partition) as place
            from seen as s
        ), chosen as (
            select r.* from ranked as r
            where rules.per_partition is null or r.partition is null
               or r.place <= rules.per_partition
            order by r.priority, r.run_at, r.job_id
            limit room
        ), locked as materialized (
            -- Checked again: a job that was moved in the meantime is not due; a locked one is skipped.
            select d.ctid as id from duetime.due as d join chosen as c on c.job_id = d.job_id
            where d.queue = of_queue and d.run_at <= moment
            for update of d skip locked
        )
        delete from duetime.due as d where d.ctid = any (array(select id from locked))
        returning d.priority, d.run_at, d.job_id, d.attempt, d.partition
    loop
        insert into duetime.claim (token, worker_id, job_ids, attempts, claimed_at, queue, partition)
        values (duetime._next_number('duetime.claim_token_seq'), worker, array[picked.job_id],
                array[picked.attempt + 1]::smallint[], moment,
                of_queue, picked.partition)
        returning claim.token into token;
        -- Read here: the caller's snapshot may be older than the job.
        select j.id, j.task, j.queue, j.priority, j.args::text, j.max_attempts, j.key,
               j.partition, j.timeout, j.expires_at, j.trace::text
        into job_id, task, queue, priority, args, max_attempts, key,
             partition, timeout, expires_at, trace
        from duetime.job as j where j.id = picked.job_id;
        attempt := picked.attempt + 1;
        run_at := picked.run_at;
        claimed_at := moment;
        taken := taken + 1;
        return next;
    end loop;
    if rules.rate is not null and taken > 0 then
        insert into duetime.rate_use (queue, at, used) values (of_queue, moment, taken);
    end if;
end $$;
