-- Statements of an enqueue. They run on the store's connection or on the caller's own, inside its
-- transaction; hence the parameters are `?`.

-- name: reserve_ids
-- First of all: takes the write lock, so that nothing read after it can change.
update duetime_counter set value = value + ? where name = 'job' returning value;

-- name: add_job
insert into duetime_new_job (id, task, run_at, args, queue, priority, key, hold, partition,
                             max_attempts, timeout, expires_at, created_at, trace, flow, complete)
values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, 1);

-- name: copy_job
-- With `copy_due`, for many jobs of one kind: what they share is given once. Half of the time of the
-- view's trigger.
insert into duetime_job (id, task, args, queue, priority, key, hold, partition, max_attempts,
                         timeout, expires_at, created_at, trace, flow)
select e.column1, ?, e.column2, ?, ?, e.column3, ?, ?, ?, ?, ?, ?, ?, ?
from (values (?, ?, ?)) as e;

-- name: copy_due
-- The ids of `copy_job`: it reads no more of those jobs.
insert into duetime_due (job_id, queue, priority, run_at, partition)
select id, ?, ?, ?, ? from duetime_job where id between ? and ?;

-- name: take_key
-- One row: the key was free, or its hold is over. Zero rows: another job holds it.
insert into duetime_job_key (task, key, job_id, hold) values (?, ?, ?, ?)
on conflict (task, key) do update
    set job_id = excluded.job_id, hold = excluded.hold, held_until = null
    where held_until <= ?
returning job_id;

-- name: key_holder
select job_id from duetime_job_key where task = ? and key = ?;

-- name: move_key
update duetime_job_key set job_id = ?, hold = ?, held_until = null where task = ? and key = ?;

-- name: replace_due
-- A run of a flow that has begun is running, also while it waits.
update duetime_due set run_at = ?, queue = ?, priority = ?, partition = ? where job_id = ?
  and not exists (select 1 from duetime_flow_step as s where s.run_id = duetime_due.job_id)
returning job_id;

-- name: replace_parked
update duetime_parked set run_at = ?, queue = ?, priority = ?, partition = ? where job_id = ?
  and not exists (select 1 from duetime_flow_step as s where s.run_id = duetime_parked.job_id)
returning job_id;

-- name: replace_job
update duetime_job set args = ?, queue = ?, priority = ?, partition = ?, expires_at = ?
where id = ?;
