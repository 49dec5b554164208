-- Deliveries: a row for each reminder and channel, also if it failed. A snooze begins another
-- round, in which channels may be asked again. Channels with a rate take turns.

alter table duetime.delivery
    add column round integer not null default 0,
    add column attempts integer not null default 1,
    add column error text,
    add column next_at timestamptz,
    alter column sent_at drop not null,
    alter column sent_at drop default,
    drop constraint delivery_reminder_id_channel_key,
    add constraint delivery_reminder_id_round_channel_key unique (reminder_id, round, channel);
alter table duetime.reminder
    add column acknowledged_at timestamptz,
    add column acknowledged_by text,
    add column snoozes integer not null default 0;

-- Locked by who wants a place: `free_at` is the first that nobody has been promised.
create table duetime.channel_rate (
    channel text primary key,
    free_at timestamptz
);
create table duetime.channel_use (
    channel text not null,
    at      timestamptz not null
);
create index channel_use_at on duetime.channel_use (channel, at);

-- Reminders as people see them, each with the delivery that counts: the last accepted one, else
-- the last.
create or replace view duetime.reminders as
select r.id, s.ref as subject, s.scope, r.due_at, r.rule_id as rule, r.recipient, r.time, r.run_at,
    r.status, r.reason, r.job_id, r.ended_at, d.channel, d.external_id, d.status as delivery,
    r.acknowledged_at, r.acknowledged_by, r.snoozes
from duetime.reminder as r
join duetime.subject as s on s.id = r.subject_id
left join lateral (
    select n.channel, n.external_id, n.status from duetime.delivery as n
    where n.reminder_id = r.id
    order by n.status in ('sent', 'delivered', 'acknowledged') desc, n.round desc,
        n.updated_at desc, n.id desc
    limit 1
) as d on true;
