-- Deliveries: a row for each reminder and channel, also if it failed. A snooze begins another
-- round, in which channels may be asked again. Channels with a rate take turns.

drop view duetime_reminders;
alter table duetime_delivery rename to duetime_delivery_before;
drop index duetime_delivery_external;
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
insert into duetime_delivery (id, reminder_id, channel, key, status, external_id, sent_at,
                              updated_at)
select id, reminder_id, channel, key, status, external_id, sent_at, updated_at
from duetime_delivery_before;
drop table duetime_delivery_before;
create index duetime_delivery_external on duetime_delivery (external_id)
    where external_id is not null;

alter table duetime_reminder add column acknowledged_at integer;
alter table duetime_reminder add column acknowledged_by text;
alter table duetime_reminder add column snoozes integer not null default 0;

-- `free_at` is the first place that nobody has been promised.
create table duetime_channel_rate (
    channel text primary key,
    free_at integer
) strict, without rowid;
create table duetime_channel_use (
    channel text not null,
    at      integer not null
) strict;
create index duetime_channel_use_at on duetime_channel_use (channel, at);

-- Reminders as people see them, each with the delivery that counts: the last accepted one, else
-- the last.
create view duetime_reminders as
select r.id, s.ref as subject, s.scope, r.due_at, r.rule_id as rule, r.recipient, r.time, r.run_at,
    r.status, r.reason, r.job_id, r.ended_at, d.channel, d.external_id, d.status as delivery,
    r.acknowledged_at, r.acknowledged_by, r.snoozes
from duetime_reminder as r
join duetime_subject as s on s.id = r.subject_id
left join duetime_delivery as d on d.id = (
    select n.id from duetime_delivery as n where n.reminder_id = r.id
    order by n.status in ('sent', 'delivered', 'acknowledged') desc, n.round desc,
        n.updated_at desc, n.id desc
    limit 1);
