-- Add or change a schedule by plain SQL:
-- `select duetime.schedule('nightly', 'app.report', '0 3 * * *', tz => 'Europe/Berlin')`.
-- A worker plans it within a second; one that cannot be planned is set aside, with its reason. If it
-- is paused, new times apply from now on: what the pause has missed under the old ones is skipped, and
-- shares one row of the ledger.
create or replace function duetime.schedule(
    name text, task text, spec text, tz text default 'UTC', args json default '{}',
    actor text default session_user)
    returns bigint language plpgsql as $$
#variable_conflict use_column
declare
    known duetime.schedule;
    made duetime.schedule;
    changed_in_pause boolean;
begin
    perform duetime.check_actor(actor);
    if length(coalesce(schedule.name, '')) not between 1 and 200 or schedule.name !~ '\S' then
        raise exception 'duetime: the name of a schedule must have 1 to 200 characters' using errcode = '22023';
    elsif length(coalesce(task, '')) not between 1 and 200 or task !~ '\S' then
        raise exception 'duetime: the task of a schedule must have 1 to 200 characters' using errcode = '22023';
    elsif spec is null or schedule.tz is null then
        raise exception 'duetime: the spec and the tz of a schedule must not be null' using errcode = '22023';
    elsif starts_with(task, 'duetime.') then
        raise exception 'duetime: the task name % is reserved', quote_literal(left(task, 60))
            using errcode = '22023';
    elsif json_typeof(args) is distinct from 'object' then
        raise exception 'duetime: the args of a schedule must be a JSON object' using errcode = '22023';
    end if;
    perform duetime._check_json(args, 'the args of a schedule contain');
    select * into known from duetime.schedule as s where s.name = schedule.name for update;
    -- Python writes a cron expression as an object.
    changed_in_pause := known.paused_at is not null and known.timetable::jsonb not in (
        jsonb_build_object('specs', jsonb_build_array(spec), 'tz', schedule.tz),
        jsonb_build_object('specs', jsonb_build_array(jsonb_build_object('cron', spec)),
                           'tz', schedule.tz));
    if changed_in_pause then
        insert into duetime.schedule_tick (schedule_id, tick, run_at, status, runs_as, reason, finished_at)
        values (known.id, known.planned_until, known.planned_until, 'skipped', 'fired',
                duetime.paused_reason(known.paused_by, known.pause_reason, known.failures,
                                      duetime.now()), duetime.now())
        on conflict do nothing;
    end if;
    insert into duetime.schedule as s (name, target, args, timetable)
    values (schedule.name, task, schedule.args,
            json_build_object('specs', json_build_array(spec), 'tz', schedule.tz))
    on conflict (name) do update set
        target = excluded.target, args = excluded.args, timetable = excluded.timetable,
        planned_until = case when changed_in_pause then duetime.now() else s.planned_until end,
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
