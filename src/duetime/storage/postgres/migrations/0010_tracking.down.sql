-- Triggers would call what is no longer there, and the writes of users would fail.
do $$ begin
    if exists (select from duetime.tracked) then
        raise exception 'duetime: tables are tracked: run `duetime untrack` for each first'
            using errcode = '22023';
    end if;
end $$;
drop function duetime.track_forget(text, text);
drop function duetime.track_clear(text, integer);
drop function duetime._delete_subjects(bigint[], text);
drop function duetime.track_rows(
    text, text[], text[], timestamptz[], timestamp[], text[], jsonb[], jsonb[], boolean[], text[]);
drop function duetime.track_define(text, text, json, text);
drop function duetime._recipients(jsonb);
drop function duetime._is_zone(text);
drop function duetime.rearm_below(text, bigint, integer, text);
drop function duetime.rearm(bigint[], text);
drop function duetime._rearm_some(bigint[], text, timestamptz);
drop function duetime._knows_zone(text);
drop function duetime._to_instant(timestamp, text);
drop function duetime._say(timestamptz);
drop function duetime.ask_rearm(timestamptz);
drop table duetime.zone, duetime.tracked;
drop index duetime.subject_tracked, duetime.subject_rearm;
alter table duetime.subject drop column rearm_at, drop column tracked, drop column problem;
