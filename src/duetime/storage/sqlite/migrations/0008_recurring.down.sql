alter table duetime_subject drop column planned_until;
alter table duetime_subject drop column planned_from;
alter table duetime_subject drop column repeats;
