-- Reminders. A subject has a due time; the rules of its scopes say when to remind of it. Each
-- reminder owns one job. What a change makes untrue is superseded in the transaction of the change.

insert into duetime_counter (name, value) values ('subject', 0), ('reminder', 0), ('delivery', 0);

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
    created_at integer not null,
    updated_at integer not null
) strict;
create index duetime_subject_scope on duetime_subject (scope);

create table duetime_reminder (
    id         integer primary key,
    subject_id integer not null,
    due_at     integer not null,
    rule_id    text not null,
    rule       text not null,
    time       integer not null,
    recipient  text not null default '',
    revision   integer not null,
    run_at     integer,
    status     text not null,
    reason     text,
    job_id     integer,
    created_at integer not null,
    ended_at   integer,
    unique (subject_id, due_at, rule_id, time, recipient, revision)
) strict;
create unique index duetime_reminder_job on duetime_reminder (job_id) where job_id is not null;
create index duetime_reminder_armed on duetime_reminder (run_at) where status = 'armed';

-- One row for each message that was handed over.
create table duetime_delivery (
    id          integer primary key,
    reminder_id integer not null,
    channel     text not null,
    key         text not null,
    status      text not null,
    external_id text,
    sent_at     integer not null,
    updated_at  integer not null,
    unique (reminder_id, channel)
) strict;
create index duetime_delivery_external on duetime_delivery (external_id)
    where external_id is not null;

-- Reminders as people see them.
create view duetime_reminders as
select r.id, s.ref as subject, s.scope, r.due_at, r.rule_id as rule, r.recipient, r.time, r.run_at,
    r.status, r.reason, r.job_id, r.ended_at, d.channel, d.external_id, d.status as delivery
from duetime_reminder as r
join duetime_subject as s on s.id = r.subject_id
left join duetime_delivery as d on d.reminder_id = r.id;
