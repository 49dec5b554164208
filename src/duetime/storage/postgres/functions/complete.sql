-- Complete a held job in the caller's own transaction: its writes and the finish commit
-- together, or not at all. False: the claim is gone; roll back.
create or replace function duetime.complete(finish json) returns boolean
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
    insert into duetime.attempt (job_id, token, attempt, worker_id, outcome, claimed_at,
                                 started_at, finished_at, result, log)
    values (of_job, of_token, held.attempt, held.worker_id, 'completed', held.claimed_at,
            held.claimed_at + (finish ->> 'started')::bigint * interval '1 microsecond',
            held.claimed_at + (finish ->> 'finished')::bigint * interval '1 microsecond',
            finish -> 'result', finish -> 'log')
    on conflict (job_id, token) do nothing;
    if not found then
        return false;
    end if;
    delete from duetime.job_key where job_id = of_job and hold is null;
    update duetime.job_key set held_until = duetime.now() + hold where job_id = of_job;
    if exists (select from duetime.waiter as w where w.job_id = of_job) then
        perform pg_notify('duetime.finished', of_job::text);
    end if;
    return true;
end $$;
