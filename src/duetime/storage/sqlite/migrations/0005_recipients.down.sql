drop index duetime_reminder_digest;
drop index duetime_reminder_recipient;
alter table duetime_reminder drop column digest_id;
alter table duetime_reminder drop column held;
drop table duetime_digest;
drop table duetime_recipient_use;
drop table duetime_recipient;
delete from duetime_counter where name = 'digest';
