alter table duetime.subject drop column repeats;
