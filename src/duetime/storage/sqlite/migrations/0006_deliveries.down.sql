alter table duetime_reminder drop column snoozes;
alter table duetime_reminder drop column acknowledged_by;
alter table duetime_reminder drop column acknowledged_at;
alter table duetime_delivery drop column error;
alter table duetime_delivery drop column attempts;
