-- Recurring subjects: their next occurrences are armed on a rolling horizon.

alter table duetime.subject
    add column repeats json;
