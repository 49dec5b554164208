-- End jobs that wait, in `due` or parked: each gets an attempt with this outcome, its key is released,
-- and those who wait for its result are notified. `reasons`: a code with its facts for each. `unstarted`: only
-- those that never ran. Returns the jobs that waited.
create or replace function duetime._end_waiting(
    ids bigint[], outcome text, errors text[] default null, code text default null,
    reasons json[] default null, unstarted boolean default false) returns setof bigint
    language plpgsql as $$
#variable_conflict use_column
begin
    if ids is null then
        return;
    end if;
    return query
    with given as materialized (
        select g.id, g.error, g.reason from unnest(ids, errors, reasons) as g(id, error, reason)
    ), left_due as (
        delete from duetime.due as d using given as g
        where d.job_id = g.id and (d.attempt = 0 or not unstarted)
        returning d.job_id, d.attempt, g.error, g.reason
    ), unparked as (
        delete from duetime.parked as p using given as g
        where p.job_id = g.id and (p.attempt = 0 or not unstarted)
        returning p.job_id, p.attempt, g.error, g.reason
    ), ended as (
        insert into duetime.attempt (job_id, token, attempt, outcome, finished_at, error_code, error,
                                     facts)
        select w.job_id, nextval('duetime.claim_token_seq'), w.attempt, _end_waiting.outcome,
            duetime.now(), coalesce(w.reason ->> 'code', code), w.error, w.reason -> 'facts'
        from (select * from left_due union all select * from unparked) as w
        returning job_id
    ), freed as (
        delete from duetime.job_key as k using ended as e where k.job_id = e.job_id
    ), notified as materialized (
        select count(pg_notify('duetime.finished', e.job_id::text)) from ended as e
        where exists (select from duetime.waiter as w where w.job_id = e.job_id)
    )
    select e.job_id from ended as e, notified;
end $$;
