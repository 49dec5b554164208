drop view duetime_occurrences;
drop view duetime_schedules;
drop view duetime_open_run;
drop table duetime_audit;
drop table duetime_schedule_template;
drop table duetime_occurrence;
drop table duetime_schedule;
delete from duetime_counter where name in ('schedule', 'audit');
