-- The roles cannot log in: grant them to those that do. To run this again changes nothing; do so after
-- an upgrade.
do $$
declare
    role text;
begin
    foreach role in array array['duetime_worker', 'duetime_operator', 'duetime_producer',
                                'duetime_tracker', 'duetime_reader'] loop
        if not exists (select from pg_roles where rolname = role) then
            execute format('create role %I nologin', role);
        end if;
    end loop;
end $$;
grant usage on schema "duetime" to duetime_worker, duetime_operator, duetime_producer, duetime_tracker,
    duetime_reader;

-- Producers enqueue, and signal the flows that they start, by functions that run with their owner's
-- rights. They read and write no table.
grant execute on function duetime.enqueue, duetime.enqueue_many, duetime.start_flow, duetime.signal_flow,
    duetime._signal_flow
    to duetime_producer;

-- Readers see everything and change nothing.
grant select on all tables in schema "duetime" to duetime_reader;

-- Trackers own tables of their own, and have reminders follow their rows (`duetime tables put`).
grant select on duetime.tracked to duetime_tracker;
grant execute on function duetime.track_define, duetime.track_clear, duetime.track_forget
    to duetime_tracker;

-- Workers run jobs, and prune. They add to the audit and never change it.
grant select, insert, update, delete on all tables in schema "duetime" to duetime_worker;
revoke insert, update, delete on duetime.migration, duetime.installation from duetime_worker;
revoke update on duetime.audit from duetime_worker;
grant usage on all sequences in schema "duetime" to duetime_worker;
grant execute on all functions in schema "duetime" to duetime_worker;

-- Operators do what people do with the CLI and the API: enqueue, cancel, requeue, pause; schedules,
-- reminders, recipients. They cannot act as a worker, nor erase what was done.
grant select on all tables in schema "duetime" to duetime_operator;
grant insert on duetime.job, duetime.due, duetime.parked, duetime.attempt, duetime.job_key, duetime.queue,
    duetime.schedule, duetime.schedule_tick, duetime.schedule_preset, duetime.service, duetime.audit, duetime.scope,
    duetime.subject, duetime.reminder, duetime.recipient, duetime.recipient_use, duetime.digest,
    duetime.delivery, duetime.channel_rate, duetime.channel_use, duetime.zone, duetime.waiter, duetime.flow_step,
    duetime.flow_signal to duetime_operator;
grant update on duetime.job, duetime.due, duetime.parked, duetime.claim, duetime.job_key, duetime.queue,
    duetime.schedule, duetime.schedule_tick, duetime.schedule_preset, duetime.service, duetime.scope, duetime.subject,
    duetime.reminder, duetime.recipient, duetime.recipient_use, duetime.digest, duetime.delivery,
    duetime.channel_rate, duetime.flow_step to duetime_operator;
grant delete on duetime.due, duetime.parked, duetime.job_key, duetime.queue, duetime.schedule,
    duetime.schedule_tick, duetime.schedule_preset, duetime.scope, duetime.subject, duetime.reminder,
    duetime.recipient, duetime.recipient_use, duetime.digest, duetime.channel_use, duetime.waiter, duetime.flow_step
    to duetime_operator;
grant usage on all sequences in schema "duetime" to duetime_operator;
grant execute on all functions in schema "duetime" to duetime_operator;
