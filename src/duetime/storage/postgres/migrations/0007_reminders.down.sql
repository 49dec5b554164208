drop view duetime.reminders;
drop table duetime.delivery, duetime.reminder, duetime.subject, duetime.scope;
