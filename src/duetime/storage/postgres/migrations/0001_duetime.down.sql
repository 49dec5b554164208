-- Triggers would call what is no longer there, and the writes of users would fail.
do $$ begin
    if exists (select from duetime.tracked) then
        raise exception 'duetime: tables are tracked: run `duetime tables delete` for each first'
            using errcode = '22023';
    end if;
end $$;
drop view duetime.reminders, duetime.reminder_row, duetime.schedule_ticks, duetime.schedules, duetime.open_run, duetime.jobs;
-- The clock last: columns have it as their default. The others first: some may name a table's row.
do $$
declare
    name text;
begin
    for name in
        select p.oid::regprocedure::text from pg_proc as p join pg_class as c
            on c.oid = 'duetime.migration'::regclass and c.relnamespace = p.pronamespace
        where p.proname <> 'now'
    loop
        execute 'drop function ' || name;
    end loop;
end $$;
drop type duetime.new_job;
drop table duetime.timeline, duetime.alert, duetime.attempt_sample, duetime.attempt_stat, duetime.idempotency,
    duetime.installation_secret, duetime.login_failure, duetime.session, duetime.account,
    duetime.api_token, duetime.flow_run, duetime.flow_signal, duetime.flow_step, duetime.zone, duetime.tracked,
    duetime.tracked_scope,
    duetime.channel_use, duetime.channel_rate, duetime.delivery,
    duetime.digest, duetime.recipient_use, duetime.recipient,
    duetime.reminder, duetime.rule, duetime.bulk_change_part, duetime.bulk_change, duetime.subject, duetime.scope,
    duetime.audit, duetime.schedule_preset, duetime.service, duetime.schedule_tick, duetime.schedule,
    duetime.waiter, duetime.progress, duetime.parked, duetime.rate_use, duetime.queue,
    duetime.job_key, duetime.task, duetime.worker_name, duetime.worker, duetime.attempt,
    duetime.claim, duetime.due, duetime.job, duetime.installation;
drop function duetime.now();
drop domain duetime.moment, duetime.span, duetime.priority, duetime.attempts;
