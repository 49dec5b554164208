drop index duetime.reminder_digest;
drop index duetime.reminder_recipient;
alter table duetime.reminder drop column held, drop column digest_id;
drop table duetime.digest, duetime.recipient_use, duetime.recipient;
