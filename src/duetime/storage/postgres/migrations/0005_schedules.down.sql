drop function duetime.schedule(text, text, text, text, json, text);
drop view duetime.occurrences, duetime.schedules, duetime.open_run;
drop table duetime.audit, duetime.schedule_template, duetime.occurrence, duetime.schedule;
