-- Recurring subjects: their next occurrences are armed on a rolling horizon. What is due from
-- `planned_from` on and before `planned_until` is armed; at `rearm_at` a worker goes on.

alter table duetime_subject add column repeats text;
alter table duetime_subject add column planned_from integer;
alter table duetime_subject add column planned_until integer;
