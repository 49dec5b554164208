-- Tracked tables: triggers keep subjects and reminders true. A subject whose reminders cannot be
-- computed in SQL is looked at again by a worker, at `rearm_at`.

alter table duetime.subject
    add column rearm_at timestamptz,
    add column tracked text;
create index subject_rearm on duetime.subject (rearm_at) where rearm_at is not null;
