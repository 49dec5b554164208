-- Statements that count jobs and group their errors. The jobs are those that `candidate_ids` returned in
-- the same snapshot.

-- name: job_facets
-- How many of these jobs there are of each queue and task. With a `state`, only those in it. With
-- `outcomes`, only those that are finished so, which costs less: a job that was requeued still has the
-- attempt that failed.
select j.queue, j.task, count(*)
from json_each(:ids) as u cross join duetime_job as j on j.id = u.value
where (:state is null
       or exists (select 1 from duetime_jobs as v where v.id = u.value and v.state = :state))
  and (:outcomes is null or (
    not exists (select 1 from duetime_claim as c where c.job_id = j.id)
    and not exists (select 1 from duetime_due as d where d.job_id = j.id)
    and not exists (select 1 from duetime_parked as p where p.job_id = j.id)
    and (select a.outcome from duetime_attempt as a where a.job_id = j.id
         order by a.token desc limit 1) in (select value from json_each(:outcomes))))
group by j.queue, j.task;

-- name: error_groups
-- These jobs, of those that are finished so, by task, error code and message. Digits are left out of the
-- message: they are what differs between two errors of one kind.
select j.task, a.error_code, count(*), min(a.finished_at), max(a.finished_at), max(j.id)
from json_each(:ids) as u cross join duetime_job as j on j.id = u.value
cross join duetime_attempt as a on a.job_id = j.id
    and a.token = (select max(l.token) from duetime_attempt as l where l.job_id = u.value)
where a.outcome in (select value from json_each(:outcomes))
  and not exists (select 1 from duetime_claim as c where c.job_id = j.id)
  and not exists (select 1 from duetime_due as d where d.job_id = j.id)
  and not exists (select 1 from duetime_parked as p where p.job_id = j.id)
group by j.task, a.error_code,
    replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(
        substr(a.error, 1, 200),
        '0', ''), '1', ''), '2', ''), '3', ''), '4', ''), '5', ''), '6', ''), '7', ''), '8', ''),
        '9', '');

-- name: errors_of
select a.job_id, substr(a.error, 1, 1000), a.facts
from json_each(:ids) as u cross join duetime_attempt as a on a.job_id = u.value
    and a.token = (select max(l.token) from duetime_attempt as l where l.job_id = u.value);
