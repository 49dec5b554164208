-- Triggers would use what is no longer there, and the writes of users would fail.
create table duetime_left (
    tracked integer constraint "untrack every table first" check (tracked is null)
);
insert into duetime_left (tracked) select 1 from duetime_tracked;
drop table duetime_left;
drop view duetime_tracked_row;
drop table duetime_tracked_change;
drop table duetime_tracked;
drop view duetime_rearm_job;
delete from duetime_counter where name in ('rearm_job', 'clock');
drop view duetime_clock;
drop index duetime_subject_tracked;
drop index duetime_subject_rearm;
alter table duetime_subject drop column problem;
alter table duetime_subject drop column tracked;
alter table duetime_subject drop column rearm_at;
