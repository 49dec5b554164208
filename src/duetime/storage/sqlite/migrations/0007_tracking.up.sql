-- Tracked tables: triggers keep subjects and reminders true. A subject whose reminders cannot be
-- computed in SQL is looked at again by a worker, at `rearm_at`.

alter table duetime_subject add column rearm_at integer;
alter table duetime_subject add column tracked text;
alter table duetime_subject add column problem text;
create index duetime_subject_tracked on duetime_subject (tracked, id) where tracked is not null;
create index duetime_subject_rearm on duetime_subject (rearm_at) where rearm_at is not null;

-- What the clock shows here. A test drives it by a row of `counter`.
create view duetime_clock as
select coalesce((select value from duetime_counter where name = 'clock'),
                cast((julianday('now') - 2440587.5) * 86400000 as integer) * 1000) as now;

-- Have a worker re-arm the subjects whose `rearm_at` is at most `run_at`: insert it here, in the
-- transaction that sets the mark. One writer at a time makes this exact: a job that waits now will
-- be claimed after this commit, and sees the mark. So one that waits already is enough.
insert into duetime_counter (name, value) values ('rearm_job', 0);
create view duetime_rearm_job as select 0 as run_at where false;
create trigger duetime_rearm_job_ask instead of insert on duetime_rearm_job
when not exists (
        select 1 from duetime_counter as c join duetime_due as d on d.job_id = c.value
        where c.name = 'rearm_job' and d.run_at <= new.run_at
          and (new.run_at <= (select now from duetime_clock) or d.run_at = new.run_at))
begin
    update duetime_counter set value = value + 1 where name = 'job';
    update duetime_counter set value = (select value from duetime_counter where name = 'job')
    where name = 'rearm_job';
    insert into duetime_job (id, task, queue, priority, args, max_attempts, created_at)
    select c.value, 'duetime.rearm',
        coalesce((select queue from duetime_task where name = 'duetime.remind'), 'default'),
        0, '{}', 1000, (select now from duetime_clock)
    from duetime_counter as c where c.name = 'rearm_job';
    insert into duetime_due (job_id, queue, priority, run_at)
    select j.id, j.queue, j.priority, new.run_at
    from duetime_counter as c join duetime_job as j on j.id = c.value where c.name = 'rearm_job';
end;

-- What is tracked: how rows of a table become subjects. Each has triggers on the table.
create table duetime_tracked (
    name       text primary key,
    table_name text not null,
    definition text not null,
    created_at integer not null,
    updated_at integer not null
) strict, without rowid;

-- Rows that changed, as they are now (null: gone), until a worker has made their subjects true.
create table duetime_tracked_change (
    ref   text primary key,
    track text not null,
    row   text,
    at    integer not null
) strict, without rowid;

-- Triggers on tracked tables insert here. The subject is stale from now on: nothing is sent for it
-- until a worker, woken by this, has computed its reminders. No ON CONFLICT: that of the statement
-- which fired the trigger would replace it.
create view duetime_tracked_row as select '' as track, '' as ref, '' as row where false;
create trigger duetime_tracked_row_change instead of insert on duetime_tracked_row
begin
    delete from duetime_tracked_change where ref = new.ref;
    insert into duetime_tracked_change (ref, track, row, at)
    select new.ref, new.track, new.row, c.now from duetime_clock as c;
    update duetime_subject
    set rearm_at = (select min(coalesce(rearm_at, c.now), c.now) from duetime_clock as c)
    where ref = new.ref;
    insert into duetime_rearm_job (run_at) select c.now from duetime_clock as c;
end;
