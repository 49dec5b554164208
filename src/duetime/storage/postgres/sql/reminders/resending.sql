-- Statements of what is sent again on request. The subject is locked.

-- name: resend_twin
-- Another reminder of the same place that was sent. Index: the unique one of reminders.
select o.id from duetime.reminder as r join duetime.rule as u on u.id = r.rule
join duetime.reminder as o
    on o.subject_id = r.subject_id and o.due_at = r.due_at
    and o.time = r.time and o.recipient = r.recipient and o.id <> r.id
join duetime.rule as n on n.id = o.rule and n.name = u.name
where r.id = (%s::json ->> 'id')::bigint and (o.status = 'sent' or o.snoozes > 0)
order by o.id desc limit 1;

-- name: resend_taken
-- Whether a channel took it in this round, whatever it reported later.
select exists (select from duetime.delivery as d
               where d.reminder_id = g.id and d.round = g.round and d.sent_at is not null)
    or exists (select from duetime.reminder as r where r.id = g.id and r.status = 'sent')
from json_to_record(%s::json) as g(id bigint, round integer);

-- name: resend
-- Armed again, under another job, which may expire. Channels that gave up are tried anew. If it
-- is another message, those whose answer was lost keep the key: their receivers may have it.
with given as materialized (
    select g.*, nextval('duetime.job_id_seq') as job_id
    from json_to_record(%s::json) as g(
        id bigint, run_at timestamptz, reason json, snoozes integer, task text,
        taken boolean, expires_at timestamptz)
), armed as (
    update duetime.reminder as r
    set status = 'armed', run_at = g.run_at, reason = g.reason, snoozes = g.snoozes,
        job_id = g.job_id, ended_at = null, acknowledged_at = null, acknowledged_by = null,
        held = null, digest_id = null
    from given as g where r.id = g.id and r.status <> 'armed'
    returning r.id
), fresh as (
    update duetime.delivery as d
    set status = 'pending', attempts = 0, error = null, next_at = null, updated_at = duetime.now()
    from given as g
    where d.reminder_id = g.id and d.round = g.snoozes and d.status in ('failed', 'pending')
), kept as (
    insert into duetime.delivery (reminder_id, round, channel, key, status, attempts)
    select d.reminder_id, g.snoozes, d.channel, d.key, 'pending', 0
    from given as g join duetime.delivery as d on d.reminder_id = g.id and d.round = g.snoozes - 1
    where g.taken and d.sent_at is null and d.attempts > 0 and substr(d.key, 1, 4) <> 'dtd_'
    on conflict (reminder_id, round, channel) do nothing
), made as materialized (
    select duetime._add_jobs(array_agg(duetime._new_job(
        g.job_id, g.task, g.run_at, json_build_object('reminder', g.id),
        expires_at => g.expires_at)))
    from armed as a join given as g on g.id = a.id
)
select a.id from made join armed as a on true;

-- name: resend_find
-- Reminders that finished with a status, some at a time. Index: reminder_troubled.
with recursive input as materialized (
    select * from json_to_record(%s::json) as g(
        status text, after bigint, subject text, scope text, recipient text, since timestamptz)
), below as (
    select i.scope as ref from input as i where i.scope is not null
    union
    select s.ref from duetime.scope as s join below as b on s.parent = b.ref
)
select n.id from input as i cross join lateral (
    select r.id from duetime.reminder as r join duetime.subject as s on s.id = r.subject_id
    where r.status = i.status and r.status in ('failed', 'expired', 'skipped') and r.id > i.after
      and (i.subject is null or s.ref = i.subject)
      and (i.scope is null or s.scope in (select b.ref from below as b))
      and (i.recipient is null or r.recipient = i.recipient)
      and (i.since is null or r.ended_at >= i.since)
    order by r.id limit 500
) as n order by n.id;
