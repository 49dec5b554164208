-- A job's state, derived from where it stands.
create view duetime_jobs as
select j.id, j.task, j.queue, coalesce(d.priority, j.priority) as priority,
    case
        when d.job_id is not null then iif(d.attempt > 0, 'retrying', 'pending')
        when p.job_id is not null then 'parked'
        when c.job_id is not null then 'running'
        when a.ended_as in ('completed', 'dead', 'cancelled', 'superseded', 'expired') then a.ended_as
        else 'pending'
    end as state,
    j.args,
    coalesce(d.attempt, p.attempt, c.attempt, a.attempt, 0) as attempts,
    j.max_attempts, coalesce(d.run_at, p.run_at) as run_at, j.created_at,
    iif(d.job_id is null and p.job_id is null and c.job_id is null, a.finished_at, null)
        as finished_at,
    j.key, j.partition, j.timeout, j.expires_at,
    w.name as worker, c.claimed_at, w.lease_until, a.error_code, a.error,
    p.reason as parked_reason, g.progress
from duetime_job as j
left join duetime_due as d on d.job_id = j.id
left join duetime_parked as p on p.job_id = j.id
left join duetime_claim as c on c.job_id = j.id
left join duetime_worker as w on w.id = c.worker_id
left join duetime_attempt as a on a.job_id = j.id
    and a.token = (select max(last.token) from duetime_attempt as last where last.job_id = j.id)
left join duetime_progress as g on g.job_id = j.id;
