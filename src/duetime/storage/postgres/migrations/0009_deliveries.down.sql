alter table duetime.reminder
    drop column acknowledged_at, drop column acknowledged_by, drop column snoozes;
alter table duetime.delivery drop column attempts, drop column error;
