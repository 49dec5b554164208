-- The roles cannot log in: grant them to those that do. To run this again changes nothing; do so after
-- an upgrade.
do $$
declare
    role text;
begin
    foreach role in array array['duetime_worker', 'duetime_operator', 'duetime_producer',
                                'duetime_tracker', 'duetime_reader', 'duetime_access'] loop
        if not exists (select from pg_roles where rolname = role) then
            execute format('create role %I nologin', role);
        end if;
    end loop;
end $$;
grant usage on schema "duetime" to duetime_worker, duetime_operator, duetime_producer, duetime_tracker,
    duetime_reader, duetime_access;

-- Producers enqueue, and signal the flows that they start, by functions that run with their owner's
-- rights. They read and write no table.
grant execute on function duetime.enqueue, duetime.enqueue_many, duetime.start_flow, duetime.signal_flow,
    duetime._signal_flow
    to duetime_producer;

-- Readers see everything but secrets, and change nothing.
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
    duetime.subject, duetime.bulk_change, duetime.bulk_change_part, duetime.rule, duetime.reminder, duetime.recipient, duetime.recipient_use, duetime.digest,
    duetime.delivery, duetime.channel_rate, duetime.channel_use, duetime.zone, duetime.waiter, duetime.flow_step,
    duetime.flow_signal to duetime_operator;
grant update on duetime.job, duetime.due, duetime.parked, duetime.claim, duetime.job_key, duetime.queue,
    duetime.schedule, duetime.schedule_tick, duetime.schedule_preset, duetime.service, duetime.scope, duetime.subject,
    duetime.bulk_change, duetime.bulk_change_part, duetime.reminder, duetime.recipient, duetime.recipient_use, duetime.digest, duetime.delivery,
    duetime.channel_rate, duetime.flow_step to duetime_operator;
grant delete on duetime.due, duetime.parked, duetime.job_key, duetime.queue, duetime.schedule,
    duetime.schedule_tick, duetime.schedule_preset, duetime.scope, duetime.tracked_scope, duetime.bulk_change,
    duetime.bulk_change_part, duetime.subject, duetime.reminder,
    duetime.recipient, duetime.recipient_use, duetime.digest, duetime.channel_use, duetime.waiter, duetime.flow_step
    to duetime_operator;
grant usage on all sequences in schema "duetime" to duetime_operator;
grant execute on all functions in schema "duetime" to duetime_operator;

-- This role, granted in addition to another one, checks and manages who may use the service. The
-- others cannot read a hash or a secret, nor make themselves a token. Workers prune.
revoke all on duetime.api_token, duetime.account, duetime.session, duetime.login_failure,
    duetime.installation_secret, duetime.idempotency from duetime_worker, duetime_operator, duetime_reader;
grant select (id, name, scope, expires_at, created_at, created_by, last_used_at, revoked_at, revoked_by)
    on duetime.api_token to duetime_worker, duetime_operator, duetime_reader;
grant select (name, role, created_at, created_by, password_set_at, disabled_at, disabled_by, last_login_at)
    on duetime.account to duetime_worker, duetime_operator, duetime_reader;
grant select (id, used_at, expires_at) on duetime.session to duetime_worker;
grant select (bucket, until) on duetime.login_failure to duetime_worker;
grant select (id, expires_at) on duetime.idempotency to duetime_worker;
grant delete on duetime.api_token, duetime.session, duetime.login_failure, duetime.idempotency
    to duetime_worker;
grant select, insert, update, delete on duetime.api_token, duetime.account, duetime.session,
    duetime.login_failure, duetime.installation_secret, duetime.idempotency to duetime_access;
grant select on duetime.migration, duetime.installation to duetime_access;
grant insert on duetime.audit to duetime_access;
grant execute on function duetime.now to duetime_access;
