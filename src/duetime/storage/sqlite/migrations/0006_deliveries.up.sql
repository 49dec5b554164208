-- Deliveries: every attempt is counted; a reminder is acknowledged or snoozed.

alter table duetime_delivery add column attempts integer not null default 1;
alter table duetime_delivery add column error text;
alter table duetime_reminder add column acknowledged_at integer;
alter table duetime_reminder add column acknowledged_by text;
alter table duetime_reminder add column snoozes integer not null default 0;
