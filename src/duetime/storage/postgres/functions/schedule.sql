-- Add or change a schedule by plain SQL:
-- `select duetime.schedule('nightly', 'app.report', '0 3 * * *', tz => 'Europe/Berlin')`.
-- A worker plans it within a second; one that cannot be planned is set aside, with its reason.
create or replace function duetime.schedule(
    name text, task text, spec text, tz text default 'UTC', args json default '{}',
    actor text default session_user)
    returns bigint language plpgsql as $$
#variable_conflict use_column
declare
    known duetime.schedule;
    made duetime.schedule;
begin
    perform duetime.check_actor(actor);
    if coalesce(schedule.name, '') = '' or length(schedule.name) > 200 then
        raise exception 'duetime: the name of a schedule must have 1 to 200 characters' using errcode = '22023';
    elsif coalesce(task, '') = '' then
        raise exception 'duetime: the task of a schedule must not be empty' using errcode = '22023';
    elsif starts_with(task, 'duetime.') then
        raise exception 'duetime: the task name % is reserved', quote_literal(left(task, 60))
            using errcode = '22023';
    elsif json_typeof(args) is distinct from 'object' then
        raise exception 'duetime: the args of a schedule must be a JSON object' using errcode = '22023';
    end if;
    select * into known from duetime.schedule as s where s.name = schedule.name for update;
    insert into duetime.schedule as s (name, target, args, timetable)
    values (schedule.name, task, schedule.args,
            json_build_object('specs', json_build_array(spec), 'tz', schedule.tz))
    on conflict (name) do update set
        target = excluded.target, args = excluded.args, timetable = excluded.timetable,
        plain = null, broken = null, next_run_at = duetime.now(), revision = s.revision + 1,
        updated_at = duetime.now()
    returning * into made;
    insert into duetime.audit (actor, action, entity, before, after)
    values (actor, 'schedule.put', 'schedule:' || made.name,
            case when known.id is not null then
                json_build_object('target', known.target, 'args', known.args, 'timetable', known.timetable)
            end,
            json_build_object('target', made.target, 'args', made.args, 'timetable', made.timetable));
    return made.id;
end $$;
