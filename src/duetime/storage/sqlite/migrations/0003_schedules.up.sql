-- Schedules. The next ticks of each are ordinary jobs that wait in `due`; the ledger has one row
-- for each tick that was expected, and says what became of it.

insert into duetime_counter (name, value) values ('schedule', 0), ('audit', 0);

create table duetime_schedule (
    id               integer primary key,
    name             text not null unique,
    kind             text not null default 'task' check (kind in ('task', 'flow')),
    target           text not null,
    args             text not null default '{}',
    queue            text,
    priority         integer,
    max_attempts     integer,
    timeout          integer,
    timetable        text not null,
    policy           text not null default '{}',
    -- What the look before a run needs of the policy. Null: the policy has not been read yet.
    plain            integer,
    at_once          integer,
    grace            integer,
    planned_until    integer not null,
    next_run_at      integer,
    last_run_at      integer,
    last_enqueued_at integer,
    paused_at        integer,
    paused_by        text,
    pause_reason     text,
    paused_until     integer,
    failures         integer not null default 0,
    broken           text,
    declared         integer not null default 0,
    revision         integer not null default 1,
    created_at       integer not null,
    updated_at       integer not null
) strict;
create index duetime_schedule_next on duetime_schedule (next_run_at)
    where paused_at is null and broken is null;
create index duetime_schedule_paused on duetime_schedule (paused_until) where paused_until is not null;

create table duetime_occurrence (
    schedule_id integer not null references duetime_schedule (id) on delete cascade,
    tick        integer not null,
    run_at      integer not null,
    status      text not null,
    runs_as     text not null default 'fired',
    reason      text,
    job_id      integer,
    enqueued_at integer,
    begun_at    integer,
    worker      text,
    started_at  integer,
    finished_at integer,
    succeeded   integer,
    error       text,
    primary key (schedule_id, tick)
) strict, without rowid;
create index duetime_occurrence_waiting on duetime_occurrence (schedule_id, tick)
    where status = 'waiting' and job_id is not null and finished_at is null;
create unique index duetime_occurrence_job on duetime_occurrence (job_id) where job_id is not null;
-- The runs that have not ended: a few of each schedule.
create index duetime_occurrence_open on duetime_occurrence (schedule_id, tick)
    where job_id is not null and finished_at is null;

create table duetime_schedule_template (
    name        text primary key,
    timetable   text not null,
    description text not null default '',
    updated_at  integer not null
) strict, without rowid;

-- Who changed what, in the same transaction as the change. Append-only.
create table duetime_audit (
    id     integer primary key,
    at     integer not null,
    actor  text not null,
    action text not null,
    entity text not null,
    before text,
    after  text,
    reason text
) strict;
create index duetime_audit_entity on duetime_audit (entity, id);
create index duetime_audit_at on duetime_audit (at);

-- The open runs. `begun`: its job has left `due`, or was tried before. What has ended and is not
-- yet recorded in the ledger is not open.
create view duetime_open_run as
select o.schedule_id, o.tick, o.run_at, o.status, o.runs_as, o.job_id,
    o.begun_at is not null
    or not exists (select 1 from duetime_due as d where d.job_id = o.job_id and d.attempt = 0)
       and not exists (select 1 from duetime_parked as p where p.job_id = o.job_id and p.attempt = 0)
        as begun
from duetime_occurrence as o indexed by duetime_occurrence_open
where o.job_id is not null and o.finished_at is null
  and exists (select 1 from duetime_job as j where j.id = o.job_id)
  and not exists (
    select 1 from duetime_attempt as a
    where a.job_id = o.job_id
      and a.ended_as in ('completed', 'dead', 'cancelled', 'superseded', 'expired'));

-- Schedules as people see them.
create view duetime_schedules as
select s.name, s.kind, s.target, s.args, s.timetable, s.policy,
    s.paused_at is null and s.broken is null as enabled,
    s.next_run_at, s.last_run_at, s.last_enqueued_at, s.paused_at, s.paused_by, s.pause_reason,
    s.paused_until, s.failures, s.broken, s.declared, s.revision, s.created_at, s.updated_at
from duetime_schedule as s;

-- The ledger as people see it.
create view duetime_occurrences as
select s.name as schedule, o.tick, o.run_at, o.status, o.reason, o.job_id, o.enqueued_at,
    o.begun_at as claimed_at, o.worker as claimed_by, o.started_at, o.finished_at,
    o.finished_at - o.started_at as duration, o.succeeded, o.error
from duetime_occurrence as o join duetime_schedule as s on s.id = o.schedule_id;
