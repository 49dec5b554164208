drop index duetime_subject_rearm;
alter table duetime_subject drop column tracked;
alter table duetime_subject drop column rearm_at;
