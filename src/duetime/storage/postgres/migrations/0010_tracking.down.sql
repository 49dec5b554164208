drop index duetime.subject_rearm;
alter table duetime.subject drop column rearm_at, drop column tracked;
