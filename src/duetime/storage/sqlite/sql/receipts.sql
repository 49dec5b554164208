-- Statements of receipts that come early. Each takes one JSON document, {"now": …, "doc": …}, and
-- gives the same columns as on PostgreSQL.

-- name: receipt_keyed
-- The reminders of one due time of a subject.
with input(doc) as (select ?)
select r.id from input as i
cross join duetime_subject as s on s.ref = json_extract(i.doc, '$.doc.subject')
cross join duetime_reminder as r
    on r.subject_id = s.id and r.due_at = json_extract(i.doc, '$.doc.due_at')
order by r.id;

-- name: receipt_early
-- The channel took them, as its receiver tells; who sends them has not recorded that yet.
with input(doc) as (select ?)
insert into duetime_delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   sent_at, updated_at)
select json_extract(e.value, '$.id'), json_extract(e.value, '$.round'),
    json_extract(e.value, '$.channel'), json_extract(e.value, '$.key'), 'sent', 1,
    json_extract(e.value, '$.external_id'), json_extract(i.doc, '$.now'),
    json_extract(i.doc, '$.now')
from input as i cross join json_each(i.doc, '$.doc') as e where true
on conflict (reminder_id, round, channel) do update
set (key, status, external_id, next_at, sent_at, updated_at)
    = (excluded.key, excluded.status, excluded.external_id, null, excluded.sent_at,
       excluded.updated_at)
where d.status in ('pending', 'failed') or d.key <> excluded.key;

-- name: receipt_digest
-- What has the key of a digest.
with input(doc) as (select ?)
select d.id, d.reminder_id, d.round, d.channel, d.key, d.status, d.attempts, d.external_id,
    d.error, d.next_at, d.sent_at, d.updated_at
from input as i cross join duetime_delivery as d on d.key = json_extract(i.doc, '$.doc.key')
where substr(d.key, 1, 7) = 'digest:'
order by d.id;

-- name: receipt_known_as
with input(doc) as (select ?)
update duetime_delivery set external_id = (select json_extract(doc, '$.doc.external_id') from input)
where id = (select json_extract(doc, '$.doc.id') from input) and external_id is null;
