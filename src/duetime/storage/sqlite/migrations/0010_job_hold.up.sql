-- How long a job's key is held after its completion, also when it is requeued: `job_key` forgets
-- it as soon as the job ends otherwise.
alter table duetime_job add column hold integer;
update duetime_job set hold = k.hold from duetime_job_key as k
where k.job_id = duetime_job.id and k.hold is not null and k.held_until is null;
