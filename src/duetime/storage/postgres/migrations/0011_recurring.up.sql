-- Recurring subjects: their next occurrences are armed on a rolling horizon. What is due from
-- `planned_from` on and before `planned_until` is armed; at `rearm_at` a worker goes on.

alter table duetime.subject
    add column repeats json,
    add column planned_from timestamptz,
    add column planned_until timestamptz;
