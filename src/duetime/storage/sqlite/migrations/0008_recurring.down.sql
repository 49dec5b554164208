alter table duetime_subject drop column repeats;
