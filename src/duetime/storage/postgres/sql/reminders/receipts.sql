-- Statements of receipts that come early. The subject is locked before anything is written.

-- name: receipt_keyed
-- The reminders with a key: several, if one was withdrawn and armed again. Index: reminder_key.
select r.id from duetime.reminder as r
where r.key = substr(%s::json ->> 'key', 5)::uuid order by r.id;

-- name: receipt_early
-- The channel accepted them, as its receiver reports; the sender has not recorded that yet.
insert into duetime.delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   sent_at, updated_at)
select g.id, g.round, g.channel, g.key, 'sent', 1, g.external_id, duetime.now(), duetime.now()
from json_to_recordset(%s::json) as g(
    id bigint, round integer, channel text, key text, external_id text)
on conflict (reminder_id, round, channel) do update
set (key, status, external_id, next_at, sent_at, updated_at)
    = (excluded.key, excluded.status, excluded.external_id, null, excluded.sent_at,
       excluded.updated_at)
where d.status in ('pending', 'failed') or d.key <> excluded.key;

-- name: receipt_digest
-- What has the key of a digest. Index: delivery_digest.
select d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
    d.error::text, d.next_at, d.sent_at, d.updated_at
from duetime.delivery as d
where d.key = %s::json ->> 'key' and substr(d.key, 1, 4) = 'dtd_'
order by d.id;

-- name: receipt_known_as
update duetime.delivery as d set external_id = g.external_id
from json_to_record(%s::json) as g(id bigint, external_id text)
where d.id = g.id and d.external_id is null;

-- name: reminder_report
-- It was sent, as its receiver reports, although its answer was lost. One that a worker sends just
-- now, alone or in a digest, is left to that worker. Its job has nothing left to do.
with input as materialized (
    select * from json_to_record(%s::json) as g(id bigint, reason json)
), reported as materialized (
    update duetime.reminder as r
    set status = 'sent', ended_at = duetime.now(), held = null, reason = g.reason
    from input as g
    where r.id = g.id and r.status <> 'sent'
      and (r.status <> 'armed'
           or (r.digest_id is null
               and (exists (select from duetime.due as d where d.job_id = r.job_id)
                    or exists (select from duetime.parked as p where p.job_id = r.job_id))))
    returning r.id, r.job_id
), left_due as (
    delete from duetime.due where job_id in (select job_id from reported) returning job_id, attempt
), unparked as (
    delete from duetime.parked where job_id in (select job_id from reported) returning job_id, attempt
), ended as (
    insert into duetime.attempt (job_id, token, attempt, outcome, finished_at)
    select l.job_id, nextval('duetime.claim_token_seq'), l.attempt, 'completed', duetime.now()
    from (select * from left_due union all select * from unparked) as l
)
select id from reported;
