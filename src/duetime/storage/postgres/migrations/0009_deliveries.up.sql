-- Deliveries: every attempt is counted; a reminder is acknowledged or snoozed.

alter table duetime.delivery
    add column attempts integer not null default 1,
    add column error text;
alter table duetime.reminder
    add column acknowledged_at timestamptz,
    add column acknowledged_by text,
    add column snoozes integer not null default 0;
