-- The same model as on PostgreSQL. `job` is immutable on the hot path; a job's state is where it
-- stands: in `due` it waits, in `claim` it runs, else its last `attempt` says how it ended.
-- Times are microseconds since 1970 in UTC, spans are microseconds, JSON is text.

-- Ids and tokens only grow: a number that was pruned is never given again.
create table duetime_counter (
    name  text primary key,
    value integer not null
) strict, without rowid;
insert into duetime_counter (name, value) values ('job', 0), ('token', 0), ('worker', 0);

create table duetime_job (
    id           integer primary key,
    task         text not null,
    queue        text not null,
    priority     integer not null,
    args         text not null,
    key          text,
    partition    text,
    max_attempts integer not null,
    timeout      integer,
    expires_at   integer,
    created_at   integer not null,
    trace        text
) strict;

-- One narrow row for each job that waits. The index is the claim's: lanes of (queue, priority)
-- in time order, so a claim never walks what is not due.
-- Priority 10 is the quarantine lane: jobs that two workers died with.
create table duetime_due (
    job_id    integer primary key,
    queue     text not null,
    priority  integer not null,
    run_at    integer not null,
    attempt   integer not null default 0,
    partition text
) strict;
create index duetime_due_lane on duetime_due (queue, priority, run_at, job_id);

-- One row for each job that is held, under its worker's lease; the primary key allows one holder.
-- `queue` is set if the queue has limits: those rows are counted.
create table duetime_claim (
    job_id     integer primary key,
    token      integer not null,
    attempt    integer not null,
    worker_id  integer not null,
    claimed_at integer not null,
    queue      text,
    partition  text,
    cancelled  integer
) strict;
create index duetime_claim_limited on duetime_claim (queue, partition) where queue is not null;
create index duetime_claim_cancelled on duetime_claim (worker_id) where cancelled is not null;

-- The history: one row for each time that a job was held, or ended while it waited.
create table duetime_attempt (
    job_id      integer not null,
    token       integer not null,
    attempt     integer not null,
    worker_id   integer,
    ended_as    text not null,
    claimed_at  integer,
    started_at  integer,
    finished_at integer not null,
    error_code  text,
    error       text,
    traceback   text,
    result      text,
    primary key (job_id, token)
) strict, without rowid;
create index duetime_attempt_ended on duetime_attempt (ended_as, finished_at);

create table duetime_worker (
    id          integer primary key,
    name        text not null,
    queues      text not null,
    tasks       text not null,
    concurrency integer not null,
    started_at  integer not null,
    seen_at     integer not null,
    lease_until integer not null
) strict;

-- Names of workers outlive them: history shows who ran what.
create table duetime_worker_name (
    id   integer primary key,
    name text not null,
    at   integer not null
) strict;

-- The defaults of each task as its last deployed worker knows them.
create table duetime_task (
    name         text primary key,
    queue        text not null,
    priority     integer not null,
    max_attempts integer not null,
    timeout      integer,
    expires      integer,
    updated_at   integer not null
) strict, without rowid;

-- A held key. Released when its job ends, or `hold` later if it completed.
create table duetime_job_key (
    task       text not null,
    key        text not null,
    job_id     integer not null,
    hold       integer,
    held_until integer,
    primary key (task, key)
) strict, without rowid;
create unique index duetime_job_key_job on duetime_job_key (job_id);

-- Only queues that are paused or limited have a row.
create table duetime_queue (
    name          text primary key,
    paused_at     integer,
    paused_by     text,
    pause_reason  text,
    running       integer,
    per_partition integer,
    rate          integer,
    period        integer
) strict, without rowid;

-- What a rate limit has let through, in the last period.
create table duetime_rate_use (
    queue text not null,
    at    integer not null,
    used  integer not null
) strict;
create index duetime_rate_use_at on duetime_rate_use (queue, at);

-- Jobs whose task no worker that met them knows.
create table duetime_parked (
    job_id    integer primary key,
    queue     text not null,
    task      text not null,
    priority  integer not null,
    run_at    integer not null,
    attempt   integer not null,
    partition text,
    reason    text not null,
    parked_at integer not null
) strict;
create index duetime_parked_task on duetime_parked (task);

create table duetime_progress (
    job_id   integer primary key,
    token    integer not null,
    progress text not null,
    at       integer not null
) strict;
