-- Statements that find what a text may name. Each reads a bounded number of rows.

-- name: search_jobs
-- The job of this number, and the newest jobs with this key. Served by job_pkey and job_by_key.
with g as materialized (
    select * from json_to_record(%s::json) as g(text text, number bigint, most integer)
), found as materialized (
    select (select number from g) as id
    union
    -- Not in the order of job_pkey: it would be walked.
    (select k.id from (
        select j.id from duetime.job as j where j.key = (select text from g) offset 0) as k
     order by k.id desc limit (select most from g))
)
select v.id, v.task, v.state, v.key, (select j.flow from duetime.job as j where j.id = v.id)
from duetime.jobs as v where v.id = any (array(select f.id from found as f where f.id is not null))
order by v.id desc;

-- name: search_reminder
-- Served by reminder_pkey.
select r.id, s.ref, r.status
from json_to_record(%s::json) as g(number bigint)
join duetime.reminder as r on r.id = g.number
join duetime.subject as s on s.id = r.subject_id;

-- name: search_names
-- Schedules, tasks, tracked tables and queues that are paused or limited: there are few, so that any part
-- of the name matches. Subjects, recipients and scopes by the beginning of their reference, along
-- subject_ref_key, recipient_pkey and scope_pkey: those that stand next in the order of the database,
-- which is by bytes in most. Otherwise some may be missing, but for the one of this very name.
with g as materialized (
    select * from json_to_record(%s::json)
        as g(text text, lower text, most integer, scanned integer)
)
(select 'schedule', s.name, s.timetable::text
 from (select * from duetime.schedule as s order by s.id limit (select scanned from g)) as s
 where strpos(lower(s.name), (select lower from g)) > 0
 order by s.name = (select text from g) desc, s.name limit (select most from g))
union all
(select case when t.flow then 'flow' else 'task' end, t.name, t.queue
 from (select * from duetime.task as t order by t.name limit (select scanned from g)) as t
 where strpos(lower(t.name), (select lower from g)) > 0
 order by t.name = (select text from g) desc, t.name limit (select most from g))
union all
(select 'table', t.name, t.table_name from duetime.tracked as t
 where strpos(lower(t.name), (select lower from g)) > 0 order by t.name limit (select most from g))
union all
(select 'queue', q.name, null from duetime.queue as q
 where strpos(lower(q.name), (select lower from g)) > 0 order by q.name limit (select most from g))
union all
(select 'subject', s.ref, s.status
 from (select * from duetime.subject as s where s.ref >= (select text from g)
       order by s.ref limit (select scanned / 10 from g)) as s
 where starts_with(s.ref, (select text from g)) order by s.ref limit (select most from g))
union all
(select 'recipient', r.ref, r.tz
 from (select * from duetime.recipient as r where r.ref >= (select text from g)
       order by r.ref limit (select scanned / 10 from g)) as r
 where starts_with(r.ref, (select text from g)) order by r.ref limit (select most from g))
union all
(select 'scope', s.ref, null
 from (select * from duetime.scope as s where s.ref >= (select text from g)
       order by s.ref limit (select scanned / 10 from g)) as s
 where starts_with(s.ref, (select text from g)) order by s.ref limit (select most from g));
