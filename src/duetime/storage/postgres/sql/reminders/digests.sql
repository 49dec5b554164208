-- Statements of digests. A change of one holds its recipient's row, if there is one.

-- name: digest_open
-- The digest of a recipient to which more may be added, and when its job is due (null: it runs).
select d.id, d.job_id, q.run_at,
    q.run_at is null
        and not exists (select from duetime.parked as k where k.job_id = d.job_id)
        and not exists (select from duetime.claim as c where d.job_id = any (c.job_ids))
from duetime.digest as d left join duetime.due as q on q.job_id = d.job_id
where d.recipient = %s::json ->> 'ref' and d.status = 'waiting';

-- name: digest_add
-- A digest with its job, in one statement.
with given as materialized (
    select g.*, nextval('duetime.digest_id_seq') as id, nextval('duetime.job_id_seq') as job_id
    from json_to_record(%s::json) as g(
        ref text, run_at timestamptz, task text, installation text)
), fresh as (
    insert into duetime.digest (id, recipient, job_id) select g.id, g.ref, g.job_id from given as g
), made as materialized (
    select duetime._add_jobs(array_agg(duetime._new_job(
        g.job_id, g.task, g.run_at, json_build_object('digest', g.id),
        key => 'dtd_' || g.installation || '_' || g.id)))
    from given as g
)
select g.id, g.job_id from made cross join given as g;

-- name: digest_move
-- Its job is due earlier; no row if it does not wait.
with moved as (
    update duetime.due as q set run_at = least(q.run_at, g.run_at)
    from json_to_record(%s::json) as g(job bigint, run_at timestamptz) where q.job_id = g.job
    returning q.queue, q.run_at
)
select duetime.wake(m.queue, m.run_at) from moved as m;

-- name: digest_get
select d.id, d.recipient, d.status, d.job_id
from duetime.digest as d where d.id = (%s::json ->> 'id')::bigint;

-- name: digest_lock
-- As `digest_get`; who takes a reminder out of it waits, or has done so before.
select d.id, d.recipient, d.status, d.job_id
from duetime.digest as d where d.id = (%s::json ->> 'id')::bigint for update;

-- name: digest_stay_open
-- A reminder leaves it: no row if it was closed. A write, so that at REPEATABLE READ a digest that was
-- closed since the snapshot is a conflict.
update duetime.digest as d set status = d.status
where d.id = (%s::json ->> 'id')::bigint and d.status = 'waiting' returning d.id;

-- name: digest_members
-- Each with whether its job never expires. Indexes: reminder_digest, the primary key of jobs.
select r.id, exists (select from duetime.job as j where j.id = r.job_id and j.expires_at is null)
from duetime.reminder as r
where r.digest_id = (%s::json ->> 'id')::bigint and r.status = 'armed'
order by r.due_at, r.time, r.id limit 2000;

-- name: digest_close
-- Nothing more is added; what does not go with it is free for the next.
with input as materialized (
    select g.id, array(select value::bigint from json_array_elements_text(g.members)) as members
    from json_to_record(%s::json) as g(id bigint, members json)
), freed as (
    update duetime.reminder as r set digest_id = null
    where r.digest_id = (select id from input) and r.status = 'armed'
      and r.id <> all ((select members from input)::bigint[])
)
update duetime.digest as d set status = 'sending' where d.id = (select id from input);

-- name: digest_failed
-- Digests that were closed and not sent, and whose job has ended, or is nowhere any more: one, those
-- of jobs, or all; and how it ended. A claim may outlive one of its jobs. What has just completed
-- may be about to be recorded.
with input as materialized (
    select g.id, array(select value::bigint from json_array_elements_text(g.jobs)) as jobs,
        g.jobs is null as any_job
    from (select (doc ->> 'id')::bigint as id,
              case when json_typeof(doc -> 'jobs') = 'array' then doc -> 'jobs' end as jobs
          from (select %s::json as doc) as given) as g
)
select d.id, a.outcome, a.error_code, a.error, a.facts::text
from duetime.digest as d cross join input as i
left join lateral (
    select a.outcome, a.error, a.error_code, a.facts, a.finished_at from duetime.attempt as a where a.job_id = d.job_id
    order by a.token desc limit 1
) as a on true
where d.status = 'sending' and (i.id is null or d.id = i.id)
  and (i.any_job or d.job_id = any (i.jobs))
  and not exists (select from duetime.due as q where q.job_id = d.job_id)
  and not exists (select from duetime.parked as k where k.job_id = d.job_id)
  and not exists (
      select from duetime.claim as c
      where d.job_id = any (c.job_ids)
        and not exists (select from duetime.attempt as o
                        where o.job_id = d.job_id and o.token = c.token))
  and (a.outcome is distinct from 'completed'
       or a.finished_at <= (select duetime.now()) - interval '10 seconds')
order by d.id;

-- name: digest_delete
delete from duetime.digest where id = (%s::json ->> 'id')::bigint;

-- name: digest_sent
-- All that went with it is sent, and the jobs that waited to do so have nothing left to do. Returns
-- what was recorded. What a receipt reported before that (then it has `sent_at`) stays.
with input as materialized (
    select g.*, array(select value::bigint from json_array_elements_text(g.members)) as ids
    from json_to_record(%s::json) as g(
        members json, channel text, key text, status text, attempts integer, external_id text,
        reason json)
), mine as materialized (
    select r.id, r.job_id, r.status, r.reason, r.snoozes from duetime.reminder as r
    where r.id = any ((select ids from input)::bigint[])
    order by r.id for update of r
), marked as (
    update duetime.reminder as r
    set status = 'sent', ended_at = duetime.now(), held = null,
        reason = case when m.status = 'armed' then i.reason
            else json_build_object('code', i.reason ->> 'code', 'facts', (i.reason -> 'facts')::jsonb
                || jsonb_strip_nulls(jsonb_build_object('was', m.status, 'why', m.reason))) end
    from mine as m cross join input as i where r.id = m.id and r.status <> 'sent'
), recorded as (
    insert into duetime.delivery as d (reminder_id, round, channel, key, status, attempts,
                                       external_id, sent_at)
    select m.id, m.snoozes, i.channel, i.key, i.status, i.attempts, i.external_id, duetime.now()
    from mine as m cross join input as i
    on conflict (reminder_id, round, channel) do update
        set (key, status, attempts, external_id, next_at, sent_at, updated_at)
        = (excluded.key, excluded.status, excluded.attempts, excluded.external_id, null,
           excluded.sent_at, duetime.now())
        where d.key <> excluded.key or d.sent_at is null
    returning d.reminder_id
), ended as materialized (
    select duetime._end_waiting(array_agg(m.job_id), 'completed') from mine as m
)
select n.reminder_id from recorded as n cross join (select count(*) from ended) as e;
