drop index duetime.reminder_recipient;
drop table duetime.recipient;
