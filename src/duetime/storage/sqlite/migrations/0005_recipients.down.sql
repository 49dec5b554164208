drop index duetime_reminder_recipient;
drop table duetime_recipient;
