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
-- The channel took it, as its receiver tells; who sends it has not recorded that yet.
with input(doc) as (select ?)
insert into duetime_delivery as d (reminder_id, round, channel, key, status, attempts, external_id,
                                   sent_at, updated_at)
select json_extract(doc, '$.doc.id'), json_extract(doc, '$.doc.round'),
    json_extract(doc, '$.doc.channel'), json_extract(doc, '$.doc.key'), 'sent', 1,
    json_extract(doc, '$.doc.external_id'), json_extract(doc, '$.now'), json_extract(doc, '$.now')
from input where true
on conflict (reminder_id, round, channel) do update
set (status, external_id, next_at, sent_at, updated_at)
    = (excluded.status, excluded.external_id, null, excluded.sent_at, excluded.updated_at)
where d.status in ('pending', 'failed');

-- name: receipt_known_as
with input(doc) as (select ?)
update duetime_delivery set external_id = (select json_extract(doc, '$.doc.external_id') from input)
where id = (select json_extract(doc, '$.doc.id') from input) and external_id is null;
