-- Recurring subjects: their next occurrences are armed on a rolling horizon.

alter table duetime_subject add column repeats text;
