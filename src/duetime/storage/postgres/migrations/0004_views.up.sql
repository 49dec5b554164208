-- A job's state, derived from where it stands.
create view duetime.jobs as
select j.id, j.task, j.queue, coalesce(d.priority, j.priority) as priority,
    case
        when d.job_id is not null then case when d.attempt > 0 then 'retrying' else 'pending' end
        when p.job_id is not null then 'parked'
        when c.token is not null then 'running'
        when a.ended_as in ('completed', 'dead', 'cancelled', 'superseded', 'expired') then a.ended_as
        else 'pending'
    end as state,
    j.args,
    case
        when d.job_id is not null then d.attempt
        when p.job_id is not null then p.attempt
        when c.token is not null then c.attempt
        else coalesce(a.attempt, 0)
    end as attempts,
    j.max_attempts, coalesce(d.run_at, p.run_at) as run_at, j.created_at,
    case when d.job_id is null and p.job_id is null and c.token is null then a.finished_at end
        as finished_at,
    j.key, j.partition, j.timeout, j.expires_at,
    w.name as worker, c.claimed_at, w.lease_until, a.error_code, a.error,
    p.reason as parked_reason, g.progress
from duetime.job as j
left join duetime.due as d on d.job_id = j.id
left join duetime.parked as p on p.job_id = j.id
left join lateral (
    select c.token, c.worker_id, c.claimed_at, c.attempts[array_position(c.job_ids, j.id)] as attempt
    from duetime.claim as c
    where d.job_id is null and p.job_id is null and j.id = any (c.job_ids)
      and not exists (select from duetime.attempt as a where a.job_id = j.id and a.token = c.token)
    limit 1
) as c on true
left join duetime.worker as w on w.id = c.worker_id
left join lateral (
    select a.* from duetime.attempt as a where a.job_id = j.id order by a.token desc limit 1
) as a on true
left join duetime.progress as g on g.job_id = j.id;

-- Complete a held job in the caller's own transaction: its writes and the finish commit
-- together, or not at all. False: the claim is gone; roll back.
create function duetime.complete(finish json) returns boolean
    language plpgsql as $$
declare
    of_job constant bigint := finish ->> 'job';
    of_token constant bigint := finish ->> 'token';
    held record;
begin
    select c.worker_id, c.claimed_at, c.attempts[array_position(c.job_ids, of_job)] as attempt
    into held from duetime.claim as c
    where c.token = of_token and of_job = any (c.job_ids) for key share;
    if not found then
        return false;
    end if;
    insert into duetime.attempt (job_id, token, attempt, worker_id, ended_as, claimed_at,
                                 started_at, finished_at, result)
    values (of_job, of_token, held.attempt, held.worker_id, 'completed', held.claimed_at,
            held.claimed_at + (finish ->> 'started')::bigint * interval '1 microsecond',
            held.claimed_at + (finish ->> 'finished')::bigint * interval '1 microsecond',
            finish -> 'result')
    on conflict (job_id, token) do nothing;
    if not found then
        return false;
    end if;
    delete from duetime.job_key where job_id = of_job and hold is null;
    update duetime.job_key set held_until = duetime.now() + hold where job_id = of_job;
    if exists (select from duetime.waiter as w where w.job_id = of_job) then
        perform pg_notify('duetime.ended', of_job::text);
    end if;
    return true;
end $$;
