-- Statements that find what a text may name. Each reads a bounded number of rows.

-- name: search_jobs
-- The job of this number, and the newest jobs with this key. Served by the primary key and job_by_key.
with input(doc) as (select ?), keyed as materialized (
    select j.id from duetime_job as j indexed by duetime_job_by_key
    where j.key = (select json_extract(doc, '$.doc.text') from input)
    order by j.id desc limit (select json_extract(doc, '$.doc.most') from input)
), found as materialized (
    select json_extract(doc, '$.doc.number') as id from input union select id from keyed
)
select v.id, v.task, v.state, v.key, (select j.flow from duetime_job as j where j.id = f.id)
from found as f cross join duetime_jobs as v on v.id = f.id
order by v.id desc;

-- name: search_reminder
-- Served by the primary key.
with input(doc) as (select ?)
select r.id, s.ref, r.status
from input cross join duetime_reminder as r on r.id = json_extract(doc, '$.doc.number')
cross join duetime_subject as s on s.id = r.subject_id;

-- name: search_names
-- Schedules, tasks, tracked tables and queues that are paused or limited: there are few, so that any part
-- of the name matches. Subjects, recipients and scopes by the beginning of their reference, along their
-- unique indexes.
with input(doc) as (select ?), g as materialized (
    select json_extract(doc, '$.doc.text') as text,
        json_extract(doc, '$.doc.text') || char(1114111) as beyond,
        json_extract(doc, '$.doc.lower') as lower, json_extract(doc, '$.doc.most') as most,
        json_extract(doc, '$.doc.scanned') as scanned from input
), schedules as materialized (
    select s.name, s.timetable from duetime_schedule as s order by s.id
    limit (select scanned from g)
), tasks as materialized (
    select t.name, t.queue, t.flow from duetime_task as t order by t.name
    limit (select scanned from g)
)
select * from (
    select 'schedule', s.name, s.timetable from schedules as s
    where instr(lower(s.name), (select lower from g)) > 0
    order by s.name = (select text from g) desc, s.name limit (select most from g))
union all
select * from (
    select iif(t.flow = 1, 'flow', 'task'), t.name, t.queue from tasks as t
    where instr(lower(t.name), (select lower from g)) > 0
    order by t.name = (select text from g) desc, t.name limit (select most from g))
union all
select * from (
    select 'table', t.name, t.table_name from duetime_tracked as t
    where instr(lower(t.name), (select lower from g)) > 0 order by t.name
    limit (select most from g))
union all
select * from (
    select 'queue', q.name, null from duetime_queue as q
    where instr(lower(q.name), (select lower from g)) > 0 order by q.name
    limit (select most from g))
union all
select * from (
    select 'subject', s.ref, s.status from duetime_subject as s
    where s.ref >= (select text from g) and s.ref < (select beyond from g)
    order by s.ref limit (select most from g))
union all
select * from (
    select 'recipient', r.ref, r.tz from duetime_recipient as r
    where r.ref >= (select text from g) and r.ref < (select beyond from g)
    order by r.ref limit (select most from g))
union all
select * from (
    select 'scope', s.ref, null from duetime_scope as s
    where s.ref >= (select text from g) and s.ref < (select beyond from g)
    order by s.ref limit (select most from g));
