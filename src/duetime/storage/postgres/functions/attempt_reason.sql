-- Why an attempt finished as it did, as a reason: its code and facts. A handler's own error has the
-- code `failed`.
create or replace function duetime._attempt_reason(outcome text, code text, error text, facts json)
    returns json language sql stable as $$
    select case
        when code is null and error is null then null
        when outcome = 'dead' and error is not null then json_build_object('code', 'failed',
            'facts', json_strip_nulls(json_build_object('error_code', code, 'text', error)))
        else json_build_object('code', coalesce(code, outcome), 'facts',
            coalesce(facts::jsonb, '{}') || jsonb_strip_nulls(jsonb_build_object('text', error))) end
$$;
