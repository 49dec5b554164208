alter table duetime.subject
    drop column repeats, drop column planned_from, drop column planned_until;
