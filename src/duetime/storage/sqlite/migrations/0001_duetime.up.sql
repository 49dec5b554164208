-- The same model as on PostgreSQL. `job` is immutable on the hot path; the table that
-- holds a job is its state: in `due` it waits, in `claim` it runs, else its last `attempt` has its
-- outcome.
-- Times are microseconds since 1970 in UTC, spans are microseconds, JSON is text. What
-- jobs are claimed by is checked (times are from 1900 to 9999): one bad row must not stop a queue.

-- Ids and tokens only grow: a number that was pruned is never given again.
create table duetime_counter (
    name  text primary key,
    value integer not null
) strict, without rowid;
insert into duetime_counter (name, value)
values ('job', 0), ('token', 0), ('worker', 0), ('schedule', 0), ('audit', 0), ('subject', 0),
    ('reminder', 0), ('delivery', 0), ('digest', 0), ('rearm_job', 0), ('api_token', 0), ('session', 0);

-- One row. `id` distinguishes this installation from every other one, such as staging from production.
create table duetime_installation (
    id text not null
) strict;
insert into duetime_installation (id) values (lower(hex(randomblob(16))));

create table duetime_job (
    id           integer primary key,
    task         text not null,
    queue        text not null,
    priority     integer not null check (priority between 0 and 10),
    args         text not null,
    key          text,
    -- How long the key is held after completion, also when the job is requeued: the row of
    -- `job_key` is gone as soon as the job has another outcome.
    hold         integer,
    partition    text,
    max_attempts integer not null check (max_attempts between 0 and 20000),
    timeout      integer,
    expires_at   integer check (expires_at between -2208988800000000 and 253370764800000000),
    created_at   integer not null check (created_at between -2208988800000000 and 253370764800000000),
    trace        text,
    -- 1 of a run of a flow; else null, which takes no room.
    flow         integer,
    -- The job of which this one is a replay.
    replay_of    integer
) strict;

create index duetime_job_by_key on duetime_job (key) where key is not null;
-- The runs of flows. Other jobs are not in it.
create index duetime_job_flow on duetime_job (id, task) where flow = 1;

-- One narrow row for each job that waits. The index is the claim's: lanes of (queue, priority)
-- in time order, so a claim never walks what is not due.
-- Priority 10 is the quarantine lane: jobs that two workers died with.
create table duetime_due (
    job_id    integer primary key,
    queue     text not null,
    priority  integer not null check (priority between 0 and 10),
    run_at    integer not null check (run_at between -2208988800000000 and 253370764800000000),
    attempt   integer not null default 0 check (attempt between 0 and 20000),
    partition text
) strict;
create index duetime_due_lane on duetime_due (queue, priority, run_at, job_id);
-- Jobs that wait for another attempt, in order of time and of their ids. Others are in neither.
create index duetime_due_retrying on duetime_due (run_at) where attempt > 0;
create index duetime_due_retrying_job on duetime_due (job_id) where attempt > 0;

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
    cancelled  integer,
    cancel_reason text
) strict;
create index duetime_claim_limited on duetime_claim (queue, partition) where queue is not null;
create index duetime_claim_cancelled on duetime_claim (worker_id) where cancelled is not null;

-- The history: one row for each time that a job was held, or finished while it waited.
create table duetime_attempt (
    job_id      integer not null,
    token       integer not null,
    attempt     integer not null,
    worker_id   integer,
    outcome    text not null,
    claimed_at  integer,
    started_at  integer,
    finished_at integer not null,
    -- The reason for the outcome: a code, the text of a handler's error or of a person, and facts.
    -- Sentences are made of the code and the facts: see `domain/reasons.py`.
    error_code  text,
    error       text,
    facts       text,
    traceback   text,
    result      text,
    -- What the handler logged: the last lines.
    log         text,
    primary key (job_id, token)
) strict, without rowid;
create index duetime_attempt_ended on duetime_attempt (outcome, finished_at);
create index duetime_attempt_troubled on duetime_attempt (outcome, job_id) where outcome <> 'completed';

-- What workers counted of their attempts, for buckets of 1, 10 and 60 minutes. `task` is empty for the
-- sum of all. `lateness` and `duration` have the number of attempts of each bucket of time.
create table duetime_attempt_stat (
    minutes  integer not null,
    at       integer not null,
    task     text not null,
    counts   text not null,
    lateness text not null,
    duration text not null,
    busy_us  integer not null,
    primary key (minutes, at, task)
) strict, without rowid;

-- Some attempts, picked at random. The higher the level, the longer one is kept.
create table duetime_attempt_sample (
    level       integer not null,
    started_at  integer not null,
    job_id      integer not null,
    task        text not null,
    outcome     text not null,
    run_at      integer not null,
    finished_at integer not null,
    primary key (level, started_at, job_id)
) strict, without rowid;

create table duetime_worker (
    id          integer primary key,
    name        text not null,
    queues      text not null,
    tasks       text not null,
    concurrency integer not null,
    started_at  integer not null,
    seen_at     integer not null,
    lease_until integer not null,
    -- By how much its event loop was behind, at most, before the last heartbeat.
    loop_lag    integer not null default 0
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
    priority     integer not null check (priority between 0 and 10),
    max_attempts integer not null check (max_attempts between 0 and 20000),
    timeout      integer,
    expires      integer,
    flow         integer,
    updated_at   integer not null
) strict, without rowid;

-- A held key. Released when its job has finished, or `hold` later if it completed.
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
    running       integer check (running > 0),
    per_partition integer check (per_partition > 0),
    rate          integer check (rate > 0),
    period        integer
) strict, without rowid;

-- What a rate limit has let through, in the last period.
create table duetime_rate_use (
    queue text not null,
    at    integer not null,
    used  integer not null
) strict;
create index duetime_rate_use_at on duetime_rate_use (queue, at);

-- Jobs that wait for something else than their time: a worker that knows their task, or somebody
-- who corrects or cancels a row that cannot be read.
create table duetime_parked (
    job_id    integer primary key,
    queue     text not null,
    task      text not null,
    priority  integer not null check (priority between 0 and 10),
    run_at    integer not null check (run_at between -2208988800000000 and 253370764800000000),
    attempt   integer not null check (attempt between 0 and 20000),
    partition text,
    reason    text not null,
    parked_at integer not null check (parked_at between -2208988800000000 and 253370764800000000),
    unreadable integer not null default 0
) strict;
create index duetime_parked_task on duetime_parked (task);

create table duetime_progress (
    job_id   integer primary key,
    token    integer not null,
    progress text not null,
    at       integer not null
) strict;

-- The options of a task that no worker has registered.
create view duetime_task_default as select 'default' as queue, 5 as priority, 3 as max_attempts;

-- Jobs are made here: insert them, and each gets its row of `due`. An option that is null is the
-- task's, as its last deployed worker knows it, unless the job is `complete`: then
-- null means that there is none.
create view duetime_new_job as
select 0 as id, '' as task, 0 as run_at, '' as args, '' as queue, 0 as priority, '' as key,
    0 as hold, '' as partition, 0 as max_attempts, 0 as timeout, 0 as expires_at,
    0 as created_at, '' as trace, 0 as flow, 0 as complete
where false;
create trigger duetime_new_job_add instead of insert on duetime_new_job
begin
    insert into duetime_job (id, task, queue, priority, args, key, hold, partition, max_attempts,
                             timeout, expires_at, created_at, trace, flow)
    values (
        new.id, new.task,
        coalesce(new.queue, (select queue from duetime_task where name = new.task),
                 (select queue from duetime_task_default)),
        coalesce(new.priority, (select priority from duetime_task where name = new.task),
                 (select priority from duetime_task_default)),
        new.args, new.key, new.hold, new.partition,
        coalesce(new.max_attempts, (select max_attempts from duetime_task where name = new.task),
                 (select max_attempts from duetime_task_default)),
        coalesce(new.timeout,
                 (select timeout from duetime_task where name = new.task and new.complete is not 1)),
        new.expires_at, new.created_at, new.trace,
        coalesce(new.flow,
                 (select flow from duetime_task where name = new.task and new.complete is not 1)));
    insert into duetime_due (job_id, queue, priority, run_at, partition)
    select id, queue, priority, new.run_at, partition from duetime_job where id = new.id;
end;

-- Ends jobs that wait, in `due` or parked: insert them, and each gets an attempt with this outcome, and
-- its key is released. Jobs that do not wait are left alone.
create view duetime_end_waiting as
select 0 as job_id, '' as outcome, '' as error_code, '' as error, '' as facts, 0 as at where false;
create trigger duetime_end_waiting_do instead of insert on duetime_end_waiting
when exists (select 1 from duetime_due where job_id = new.job_id)
  or exists (select 1 from duetime_parked where job_id = new.job_id)
begin
    update duetime_counter set value = value + 1 where name = 'token';
    insert into duetime_attempt (job_id, token, attempt, outcome, finished_at, error_code, error,
                                 facts)
    select new.job_id, (select value from duetime_counter where name = 'token'), w.attempt,
        new.outcome, new.at, new.error_code, new.error, new.facts
    from (select attempt from duetime_due where job_id = new.job_id
          union all select attempt from duetime_parked where job_id = new.job_id) as w;
    delete from duetime_due where job_id = new.job_id;
    delete from duetime_parked where job_id = new.job_id;
    delete from duetime_job_key where job_id = new.job_id;
end;

-- A job's state, derived from the table that holds it.
create view duetime_jobs as
select j.id, j.task, j.queue, coalesce(d.priority, j.priority) as priority,
    case
        when d.job_id is not null then iif(d.attempt > 0, 'retrying', 'pending')
        when p.job_id is not null then 'parked'
        when c.job_id is not null then 'running'
        when a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired') then a.outcome
        else 'pending'
    end as state,
    j.args,
    coalesce(d.attempt, p.attempt, c.attempt, a.attempt, 0) as attempts,
    j.max_attempts, coalesce(d.run_at, p.run_at) as run_at, j.created_at,
    iif(d.job_id is null and p.job_id is null and c.job_id is null, a.finished_at, null)
        as finished_at,
    j.key, j.partition, j.timeout, j.expires_at,
    w.name as worker, c.claimed_at, w.lease_until, a.error_code, a.error, a.facts,
    p.reason as parked_reason, g.progress, j.replay_of
from duetime_job as j
left join duetime_due as d on d.job_id = j.id
left join duetime_parked as p on p.job_id = j.id
left join duetime_claim as c on c.job_id = j.id
left join duetime_worker as w on w.id = c.worker_id
left join duetime_attempt as a on a.job_id = j.id
    and a.token = (select max(last.token) from duetime_attempt as last where last.job_id = j.id)
left join duetime_progress as g on g.job_id = j.id;

-- Schedules. The next ticks of each are ordinary jobs that wait in `due`; the ledger has one row
-- for each tick that was expected, with its result.

create table duetime_schedule (
    id               integer primary key,
    name             text not null unique,
    kind             text not null default 'task' check (kind in ('task', 'flow')),
    target           text not null,
    args             text not null default '{}',
    queue            text,
    priority         integer check (priority between 0 and 10),
    max_attempts     integer check (max_attempts between 0 and 20000),
    timeout          integer,
    timetable        text not null,
    policy           text not null default '{}',
    -- What the check before a run needs of the policy. Null: the policy has not been read yet.
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
    -- The service whose code declares it. Null: it was put at run time.
    owner            text,
    declared         integer not null default 0,
    revision         integer not null default 1,
    created_at       integer not null,
    updated_at       integer not null
) strict;
create index duetime_schedule_next on duetime_schedule (next_run_at)
    where paused_at is null and broken is null;
create index duetime_schedule_paused on duetime_schedule (paused_until) where paused_until is not null;
create index duetime_schedule_troubled on duetime_schedule (id)
    where failures > 0 or broken is not null;

create table duetime_schedule_tick (
    schedule_id integer not null references duetime_schedule (id) on delete cascade,
    tick        integer not null,
    run_at      integer not null,
    status      text not null,
    runs_as     text not null default 'fired',
    -- {"code": …, "facts": {…}}: see `domain/reasons.py`.
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
create index duetime_schedule_tick_waiting on duetime_schedule_tick (schedule_id, tick)
    where status = 'waiting' and job_id is not null and finished_at is null;
create unique index duetime_schedule_tick_job on duetime_schedule_tick (job_id) where job_id is not null;
-- The runs that have not finished: a few of each schedule.
create index duetime_schedule_tick_open on duetime_schedule_tick (schedule_id, tick)
    where job_id is not null and finished_at is null;
-- What alerts read.
create index duetime_schedule_tick_missed on duetime_schedule_tick (finished_at)
    where status in ('skipped', 'coalesced');

-- What an alert has reported. Nothing that happened later was.
create table duetime_alert (
    name           text primary key,
    reported_until integer not null,
    sent_at        integer
) strict;

-- The services that declare schedules, each with its newest release: an older one declares nothing.
create table duetime_service (
    name       text primary key,
    release    text not null,
    updated_at integer not null
) strict, without rowid;

create table duetime_schedule_preset (
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

-- The open runs. `begun`: its job has left `due`, or was tried before. A run that has
-- finished and is not yet recorded in the ledger is not open.
create view duetime_open_run as
select o.schedule_id, o.tick, o.run_at, o.status, o.runs_as, o.job_id,
    o.begun_at is not null
    or not exists (select 1 from duetime_due as d where d.job_id = o.job_id and d.attempt = 0)
       and not exists (select 1 from duetime_parked as p where p.job_id = o.job_id and p.attempt = 0)
        as begun,
    o.begun_at
from duetime_schedule_tick as o indexed by duetime_schedule_tick_open
where o.job_id is not null and o.finished_at is null
  and exists (select 1 from duetime_job as j where j.id = o.job_id)
  and not exists (
    select 1 from duetime_attempt as a
    where a.job_id = o.job_id
      and a.outcome in ('completed', 'dead', 'cancelled', 'superseded', 'expired'));

-- Schedules as people see them.
create view duetime_schedules as
select s.name, s.kind, s.target, s.args, s.timetable, s.policy,
    s.paused_at is null and s.broken is null as enabled,
    s.next_run_at, s.last_run_at, s.last_enqueued_at, s.paused_at, s.paused_by, s.pause_reason,
    s.paused_until, s.failures, s.broken, s.owner, s.declared, s.revision, s.created_at, s.updated_at
from duetime_schedule as s;

-- The ledger as people see it.
create view duetime_schedule_ticks as
select s.name as schedule, o.tick, o.run_at, o.status,
    json_extract(o.reason, '$.code') as reason,
    json_extract(o.reason, '$.facts') as facts, o.job_id, o.enqueued_at,
    o.begun_at as claimed_at, o.worker as claimed_by, o.started_at, o.finished_at,
    o.finished_at - o.started_at as duration, o.succeeded, o.error
from duetime_schedule_tick as o join duetime_schedule as s on s.id = o.schedule_id;

-- Reminders. A subject has a due time; the rules of its scopes say when to remind of it. Each
-- reminder owns one job. What a change makes untrue is superseded in the transaction of the change.

create table duetime_scope (
    ref        text primary key,
    parent     text,
    rules      text,
    locked     integer not null default 0,
    updated_at integer not null
) strict, without rowid;
create index duetime_scope_parent on duetime_scope (parent);

create table duetime_subject (
    id         integer primary key,
    ref        text not null unique,
    scope      text,
    due_at     integer,
    tz         text not null default 'UTC',
    status     text not null default 'open' check (status in ('open', 'done')),
    rules      text,
    data       text not null default '{}',
    recipients text not null default '[]',
    revision   integer not null default 1,
    -- Reminders that cannot be computed in SQL are computed by a worker, at `rearm_at`.
    rearm_at   integer,
    tracked    text,
    problem    text,
    -- A recurring subject is armed on a rolling horizon: what is due from `planned_from` on and
    -- before `planned_until` is armed; at `rearm_at` a worker continues.
    repeats       text,
    planned_from  integer,
    planned_until integer,
    created_at integer not null,
    updated_at integer not null
) strict;
create index duetime_subject_due on duetime_subject (due_at, id);
create index duetime_subject_problem on duetime_subject (tracked) where problem is not null;
create index duetime_subject_tracked on duetime_subject (tracked, id) where tracked is not null;
create index duetime_subject_rearm on duetime_subject (rearm_at) where rearm_at is not null;
create index duetime_subject_scope on duetime_subject (scope);

-- Each rule that reminders were armed by, once. `name` is the rule's id. `retired_at`: no reminder
-- referred to it then, and since then it is not used for new ones.
create table duetime_rule (
    id         integer primary key,
    name       text not null,
    body       text not null,
    retired_at integer
) strict;
create unique index duetime_rule_body on duetime_rule (body) where retired_at is null;

create table duetime_reminder (
    id         integer primary key,
    -- What providers know its first round by; one that is armed again has the same.
    key        text not null,
    subject_id integer not null,
    due_at     integer not null,
    -- A row of `duetime_rule`.
    rule       integer not null,
    time       integer not null,
    recipient  text not null default '',
    revision   integer not null,
    run_at     integer,
    status     text not null,
    reason     text,
    job_id     integer,
    held       text check (held in ('quiet', 'limit', 'released')),
    digest_id  integer,
    snoozes    integer not null default 0,
    acknowledged_at integer,
    acknowledged_by text,
    created_at integer not null,
    ended_at   integer,
    unique (subject_id, due_at, time, rule, revision, recipient)
) strict;
create index duetime_reminder_armed on duetime_reminder (run_at) where status = 'armed';
-- What people search for. Most reminders are sent, and never in this index.
create index duetime_reminder_troubled on duetime_reminder (status, id)
    where status in ('failed', 'expired', 'skipped');
-- Receipts find a reminder by its key.
create index duetime_reminder_key on duetime_reminder (key);
create index duetime_reminder_recipient on duetime_reminder (recipient) where status = 'armed';
-- What a recipient got lately, for their page.
create index duetime_reminder_ended on duetime_reminder (recipient, ended_at)
    where status in ('sent', 'failed') and recipient <> '';
create index duetime_reminder_digest on duetime_reminder (digest_id)
    where digest_id is not null and status = 'armed';

-- Recipients: how and when each is to be reached. What waits for a recipient's limit goes out in
-- one digest, which owns a job and is gone when it was sent.

create table duetime_recipient (
    ref           text primary key,
    tz            text,
    channels      text not null default '[]',
    quiet         text,
    muted         text not null default '[]',
    max_per_hour integer,
    disabled      text not null default '[]',
    updated_at    integer not null
) strict, without rowid;

create index duetime_recipient_disabled on duetime_recipient (ref) where disabled <> '[]';

-- What a limited recipient got in the last hour: `reminder:7`, `digest:3`.
create table duetime_recipient_use (
    recipient text not null,
    what      text not null,
    at        integer not null,
    primary key (recipient, what)
) strict, without rowid;

create table duetime_digest (
    id         integer primary key,
    recipient  text not null,
    status     text not null default 'waiting' check (status in ('waiting', 'sending')),
    job_id     integer not null,
    created_at integer not null
) strict;
create unique index duetime_digest_waiting on duetime_digest (recipient) where status = 'waiting';
create index duetime_digest_recipient on duetime_digest (recipient);
-- Every worker checks every few seconds which of the digests that are being sent have failed.
create index duetime_digest_sending on duetime_digest (id) where status = 'sending';

-- Deliveries: a row for each reminder and channel, also if it failed. A snooze begins another
-- round, in which channels may be tried again.
create table duetime_delivery (
    id          integer primary key,
    reminder_id integer not null,
    round       integer not null default 0,
    channel     text not null,
    key         text not null,
    status      text not null,
    attempts    integer not null default 1,
    external_id text,
    error       text,
    next_at     integer,
    sent_at     integer,
    updated_at  integer not null,
    unique (reminder_id, round, channel)
) strict;
create index duetime_delivery_external on duetime_delivery (external_id)
    where external_id is not null;
-- Receipts find what went out in a digest by its key.
create index duetime_delivery_digest on duetime_delivery (key) where substr(key, 1, 4) = 'dtd_';

-- Channels with a rate take turns. `free_at` is the first free place.
create table duetime_channel_rate (
    channel text primary key,
    free_at integer
) strict, without rowid;
create table duetime_channel_use (
    channel text not null,
    at      integer not null
) strict;
create index duetime_channel_use_at on duetime_channel_use (channel, at);

-- Reminders with their subjects, and with the delivery that counts: the last accepted one, else the
-- last.
create view duetime_reminder_row as
select r.id, s.ref as subject, s.scope, r.due_at, u.body as rule, r.time, r.recipient, r.run_at,
    r.status, r.reason, r.job_id, s.tz, s.data, d.channel, d.external_id,
    d.status as delivery, r.ended_at, r.snoozes, r.acknowledged_at, r.acknowledged_by, r.key,
    s.rearm_at, u.name as rule_id, r.subject_id
from duetime_reminder as r
join duetime_subject as s on s.id = r.subject_id
join duetime_rule as u on u.id = r.rule
left join duetime_delivery as d on d.id = (
    select n.id from duetime_delivery as n where n.reminder_id = r.id
    order by n.status in ('sent', 'delivered', 'acknowledged') desc, n.round desc,
        n.updated_at desc, n.id desc
    limit 1);

-- Reminders as people see them.
create view duetime_reminders as
select id, subject, scope, due_at, rule_id as rule, recipient, time, run_at, status,
    json_extract(reason, '$.code') as reason, json_extract(reason, '$.facts') as facts, job_id,
    ended_at, channel, external_id, delivery, acknowledged_at, acknowledged_by, snoozes
from duetime_reminder_row;

-- Tracked tables: triggers keep subjects and reminders true.

-- What the clock shows here. A test drives it by a row of `counter`.
create view duetime_clock as
select coalesce((select value from duetime_counter where name = 'clock'),
                cast((julianday('now') - 2440587.5) * 86400000 as integer) * 1000) as now;

-- Have a worker re-arm the subjects whose `rearm_at` is at most `run_at`: insert it here, in the
-- transaction that sets the mark. One writer at a time makes this exact: a job that waits now will
-- be claimed after this commit, and sees the mark. So one that waits already is enough.
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
    insert into duetime_new_job (id, task, run_at, args, queue, priority, max_attempts, created_at,
                                 complete)
    select c.value, 'duetime.rearm', new.run_at, '{}',
        (select queue from duetime_task where name = 'duetime.remind'), 0, 1000,
        (select now from duetime_clock), 1
    from duetime_counter as c where c.name = 'rearm_job';
end;

-- What is tracked: how rows of a table become subjects. Each has triggers on the table.
create table duetime_tracked (
    name       text primary key,
    table_name text not null,
    definition text not null,
    created_at integer not null,
    updated_at integer not null
) strict, without rowid;

-- Rows that changed, as they are now (null: gone), until a worker has made their subjects or scopes true.
create table duetime_tracked_change (
    ref   text primary key,
    track text not null,
    row   text,
    at    integer not null,
    kind  text not null
) strict, without rowid;
create index duetime_tracked_change_scope on duetime_tracked_change (track) where kind = 'scopes';

-- Scopes that follow the rows of a tracked table. One that the application has put itself is noted as a
-- problem, and left alone.
create table duetime_tracked_scope (
    ref     text primary key,
    track   text not null,
    problem text
) strict, without rowid;
create index duetime_tracked_scope_track on duetime_tracked_scope (track, ref);
create index duetime_tracked_scope_problem on duetime_tracked_scope (track) where problem is not null;

-- Triggers on tracked tables insert here. The subject is stale from now on: nothing is sent for it
-- until a worker, woken by this, has computed its reminders. A changed scope makes all stale: it is
-- not known here which are inside it. No ON CONFLICT: that of the statement
-- which fired the trigger would replace it.
create view duetime_tracked_row as
select '' as track, '' as ref, '' as row, '' as kind where false;
create trigger duetime_tracked_row_change instead of insert on duetime_tracked_row
begin
    -- What came due since the first change is late, not past, unless this one says when it is due. Of a scope, that
    -- is not known here.
    update duetime_tracked_change
    set track = new.track, row = new.row, kind = new.kind,
        at = case when kind = 'scopes' and new.kind = 'scopes' then at
                  when json_valid(row) and json_valid(new.row)
                      and json_extract(row, '$.open') and json_extract(new.row, '$.open')
                      and json_extract(row, '$.due') is json_extract(new.row, '$.due')
                      and json_extract(row, '$.tz') is json_extract(new.row, '$.tz') then at
                  else (select c.now from duetime_clock as c) end
    where ref = new.ref;
    insert into duetime_tracked_change (ref, track, row, at, kind)
    select new.ref, new.track, new.row, c.now, new.kind from duetime_clock as c
    where not exists (select 1 from duetime_tracked_change where ref = new.ref);
    update duetime_subject
    set rearm_at = (select min(coalesce(rearm_at, c.now), c.now) from duetime_clock as c)
    where ref = new.ref;
    insert into duetime_rearm_job (run_at) select c.now from duetime_clock as c;
end;

-- Flows. A run is a job: its id, its key, its state. Here is what it has done and what it waits for.

-- One row for each call of a run, in the order in which the calls were made (`seq` from 1); 0 is its
-- failure or the request to cancel it; compensations have negative numbers, -1 the first registered.
create table duetime_flow_step (
    run_id      integer not null,
    seq         integer not null,
    kind        text not null,
    name        text not null,
    -- Of a call in a branch of the function: where it is made. Its number depends on when.
    place       text,
    state       text not null,
    attempt     integer not null default 1,
    output      text,
    error_code  text,
    error       text,
    -- When a sleep, a wait or the pause before a retry is over. Null: it has no time limit.
    until       integer check (until between -2208988800000000 and 253370764800000000),
    -- Of a wait for a signal: what else the sender must name, unless it names the run.
    correlation text,
    -- The job that does it: a child, or a step in a queue of its own.
    job_id      integer,
    -- Of a job that is one of many: the first of them. The run goes on when all have ended.
    batch       integer,
    -- Of graphs: for how many steps it still waits; of a map whose items run, for how many of them.
    pending     integer,
    started_at  integer,
    finished_at integer,
    primary key (run_id, seq)
) strict, without rowid;
create index duetime_flow_step_job on duetime_flow_step (job_id)
    where job_id is not null and finished_at is null;
-- What runs wait for, but for steps of graphs that run.
create index duetime_flow_step_waiting on duetime_flow_step (run_id, seq)
    where state in ('waiting', 'retrying');
create index duetime_flow_step_signal on duetime_flow_step (name, correlation)
    where kind = 'signal' and state = 'waiting' and correlation is not null;
create index duetime_flow_step_compensation on duetime_flow_step (run_id)
    where kind = 'compensation' and state = 'registered';

-- What was sent to a run. `seq` is the wait that took it; null: none has yet.
create table duetime_flow_signal (
    id      integer primary key,
    run_id  integer not null,
    name    text not null,
    key     text,
    data    text,
    sent_at integer not null,
    sent_by text not null,
    seq     integer
) strict;
create index duetime_flow_signal_run on duetime_flow_signal (run_id, id);
create index duetime_flow_signal_untaken on duetime_flow_signal (sent_at) where seq is null;
create unique index duetime_flow_signal_key on duetime_flow_signal (run_id, name, key)
    where key is not null;

-- The graph of each run of one, as it was declared when the run started.
create table duetime_flow_run (
    run_id integer primary key,
    shape  text not null
) strict;

-- Who may use the service.

-- API tokens of programs. Only the hash of a token is stored: its text is shown once. One that expired
-- holds its name until another one takes it.
create table duetime_api_token (
    id           integer primary key,
    name         text not null,
    hash         text not null,
    scope        text not null check (scope in ('read', 'operate', 'admin')),
    expires_at   integer,
    created_at   integer not null,
    created_by   text not null,
    last_used_at integer,
    revoked_at   integer,
    revoked_by   text
) strict;
create unique index duetime_api_token_hash on duetime_api_token (hash);
create unique index duetime_api_token_name on duetime_api_token (name) where revoked_at is null;

-- People who log in. `hash` is argon2id, with its salt and parameters. `stamp` changes with the password,
-- the role and the right to log in: sessions with another one are over.
create table duetime_account (
    name            text primary key,
    role            text not null check (role in ('viewer', 'operator', 'admin')),
    hash            text not null,
    stamp           text not null,
    created_at      integer not null,
    created_by      text not null,
    password_set_at integer not null,
    disabled_at     integer,
    disabled_by     text,
    last_login_at   integer
) strict, without rowid;

-- Their logins.
create table duetime_session (
    id         integer primary key,
    hash       text not null,
    account    text not null,
    stamp      text not null,
    address    text,
    created_at integer not null,
    used_at    integer not null,
    expires_at integer not null
) strict;
create unique index duetime_session_hash on duetime_session (hash);
create index duetime_session_account on duetime_session (account, id);

-- How many logins failed, until when they count. Accounts and addresses share a fixed number of buckets.
create table duetime_login_failure (
    bucket integer primary key,
    count  integer not null,
    until  integer not null
) strict;

-- Random keys, made when they are first needed.
create table duetime_installation_secret (
    name       text primary key,
    value      text not null,
    created_at integer not null
) strict, without rowid;

-- Requests with an idempotency key. While one is carried out it has no status, and only its holder may
-- finish it; once the holder must have died, another one takes over.
create table duetime_idempotency (
    id          text primary key,
    fingerprint text not null,
    holder      text not null,
    held_until  integer not null,
    expires_at  integer not null,
    status      integer,
    headers     text,
    body        text
) strict;
create index duetime_idempotency_expires on duetime_idempotency (expires_at);
