-- Statements of receipts that come early. The subject is locked before anything is written.

-- name: receipt_keyed
-- The reminders of one due time of a subject. Index: the unique one of reminders.
select r.id from json_to_record(%s::json) as g(subject text, due_at timestamptz)
join duetime.subject as s on s.ref = g.subject
join duetime.reminder as r on r.subject_id = s.id and r.due_at = g.due_at
order by r.id;

-- name: receipt_early
-- The channel took them, as its receiver tells; who sends them has not recorded that yet.
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
    d.error, d.next_at, d.sent_at, d.updated_at
from duetime.delivery as d
where d.key = %s::json ->> 'key' and substr(d.key, 1, 7) = 'digest:'
order by d.id;

-- name: receipt_known_as
update duetime.delivery as d set external_id = g.external_id
from json_to_record(%s::json) as g(id bigint, external_id text)
where d.id = g.id and d.external_id is null;
