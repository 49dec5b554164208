-- Tracked tables: triggers keep subjects and reminders true. A subject whose reminders cannot be
-- computed in SQL is looked at again by a worker, at `rearm_at`.

alter table duetime_subject add column rearm_at integer;
alter table duetime_subject add column tracked text;
create index duetime_subject_rearm on duetime_subject (rearm_at) where rearm_at is not null;
