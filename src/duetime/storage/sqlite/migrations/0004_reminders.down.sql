drop view duetime_reminders;
drop table duetime_delivery;
drop table duetime_reminder;
drop table duetime_subject;
drop table duetime_scope;
delete from duetime_counter where name in ('subject', 'reminder', 'delivery');
