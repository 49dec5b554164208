-- Rules as text: what `domain/reminders/rule_text.py` and `rule_column.py` do in Python, for rules that
-- are in a column of a tracked table. A property test holds both together.

-- A duration as text, as `format_duration` writes it.
create or replace function duetime._span_text(us bigint) returns text
    language plpgsql immutable as $$
begin
    return case when us = 0 then '0s' else concat(
        nullif(us / 86400000000, 0) || 'd',
        nullif(us / 3600000000 % 24, 0) || 'h',
        nullif(us / 60000000 % 60, 0) || 'm',
        case when us % 60000000 = 0 then null
             when us % 1000000 = 0 then us / 1000000 % 60 || 's'
             else trim_scale((us % 60000000)::numeric / 1000) || 'ms' end) end;
end $$;

-- The microseconds of a duration such as `1h30m`; null if it is not a duration, or longer than ten years.
create or replace function duetime._span_us(span text) returns bigint
    language sql immutable as $$
    select case when n.us <= 3653 * 86400000000 then round(n.us)::bigint end
    from (select sum(m.part[1]::numeric * case m.part[2] when 'ms' then 1000 when 's' then 1000000
                 when 'm' then 60000000 when 'h' then 3600000000 when 'd' then 86400000000
                 else 604800000000 end) as us
          from regexp_matches(span, '([0-9]+(?:\.[0-9]+)?)(ms|[smhdw])', 'g') as m(part)
          where length(span) <= 40 and span ~ '^([0-9]+(\.[0-9]+)?(ms|[smhdw]))+$') as n
$$;

-- A rule as text: `Rule.text`. In PL/pgSQL, which keeps its plans: of a single row that moves, planning
-- these texts took a sixth of the time.
create or replace function duetime._rule_text(rule json) returns text
    language plpgsql stable as $$
declare
    r record;
    span text;
begin
    select g.* into r from json_to_record(rule) as g(
        offset_us bigint, wall_us bigint, at timestamptz, every_us bigint, within_us bigint);
    if r.at is not null then
        return 'at ' || duetime._say(r.at);
    elsif r.every_us is not null then
        return 'every ' || duetime._span_text(r.every_us)
            || ' within the last ' || duetime._span_text(r.within_us);
    end if;
    if r.offset_us <> 0 then
        span := case when r.offset_us < 0 then '-' else '+' end || duetime._span_text(abs(r.offset_us));
    end if;
    if r.wall_us is null then
        return coalesce(span, '0s');
    end if;
    return concat(span || ' ', 'at ', to_char(r.wall_us * interval '1 microsecond',
        case when r.wall_us % 60000000 = 0 then 'HH24:MI' else 'HH24:MI:SS' end));
end $$;

create or replace function duetime._rule_texts(rules json) returns json
    language plpgsql stable as $$
begin
    return case when rules is not null then
        (select coalesce(json_agg(duetime._rule_text(e.rule) order by e.place), '[]')
         from json_array_elements(rules) with ordinality as e(rule, place)) end;
end $$;

-- A rule with these times, as it is stored: `Rule.to_json`.
create or replace function duetime._make_rule(
    offset_us bigint default 0, wall_us bigint default null, at timestamptz default null,
    every_us bigint default null, within_us bigint default null)
    returns json language sql stable as $$
    select json_build_object('id', case
            when at is not null then 'at-' || translate(duetime._say(at), '-:', '')
            when every_us is not null then 'every-' || duetime._span_text(every_us) || '-in-last-'
                || duetime._span_text(within_us)
            when wall_us is null then coalesce(s.span, 'at-due')
            else coalesce(s.span, 'on-day') || '-at-' || to_char(wall_us * interval '1 microsecond',
                case when wall_us % 60000000 = 0 then 'HH24MI' else 'HH24MISS' end) end,
        'offset_us', offset_us, 'wall_us', wall_us, 'at', duetime._say(at), 'every_us', every_us,
        'within_us', within_us, 'past', 'skip', 'expires_us', null,
        'expires_at_due', at is not null or every_us is not null or offset_us < 0
            or wall_us is not null and offset_us = 0,
        'urgent', false, 'zone', 'subject', 'channels', null, 'template', null, 'escalate_us', null)
    from (select case when offset_us <> 0 then duetime._span_text(abs(offset_us))
                     || case when offset_us < 0 then '-before' else '-after' end end as span) as s
$$;

-- The rule that a text says, as it is stored; null if it says none.
create or replace function duetime._read_rule(given text) returns json
    language plpgsql stable as $$
declare
    clean constant text := btrim(regexp_replace(given, '\s+', ' ', 'g'));
    part text[];
    us bigint;
    other bigint;
    moment timestamptz;
begin
    if length(given) >= 100 then
        return null;
    end if;
    if clean ~ '^[0-9]{1,9}$' then
        us := clean::bigint * 60000000;
        return case when us <= 3653 * 86400000000 then duetime._make_rule(-us) end;
    end if;
    part := regexp_match(clean, '^([+-]?)((?:[0-9]+(?:\.[0-9]+)?(?:ms|[smhdw]))+)$');
    if part is not null then
        us := duetime._span_us(part[2]);
        if us is null or us <> 0 and part[1] = '' then
            return null;
        end if;
        return duetime._make_rule(case part[1] when '-' then -us else us end);
    end if;
    part := regexp_match(clean, '^(?:([+-]?)((?:[0-9]+[dw])+) )?at ([01]?[0-9]|2[0-3]):([0-5][0-9])'
                                '(?::([0-5][0-9]))?$');
    if part is not null then
        us := duetime._span_us(part[2]);
        if part[2] is not null and (us is null or us <> 0 and part[1] = '') then
            return null;
        end if;
        other := (part[3]::bigint * 3600 + part[4]::bigint * 60 + coalesce(part[5], '0')::bigint) * 1000000;
        return duetime._make_rule(coalesce(case part[1] when '-' then -us else us end, 0), other);
    end if;
    part := regexp_match(clean, '^every (\S+) within the last (\S+)$');
    if part is not null then
        us := duetime._span_us(part[1]);
        other := duetime._span_us(part[2]);
        if us is null or other is null or us < 1000000 or other = 0 or (other + us - 1) / us > 1000 then
            return null;
        end if;
        return duetime._make_rule(every_us => us, within_us => other);
    end if;
    part := regexp_match(clean, '^(?:at )?([0-9]{4}-[0-9]{2}-[0-9]{2}[T ](?:[01][0-9]|2[0-3]):[0-5][0-9]'
                                '(?::[0-5][0-9](?:\.[0-9]{1,6})?)?(?:Z|[+-][0-9]{2}:?[0-9]{2}))$');
    if part is null then
        return null;
    end if;
    begin
        moment := part[1]::timestamptz;
    exception when datetime_field_overflow or invalid_datetime_format or invalid_time_zone_displacement_value then
        return null;
    end;
    return case when moment between '1970-01-01Z' and '9000-01-01Z'
                then duetime._make_rule(at => moment) end;
end $$;

-- The rules that a column of a tracked table holds, as they are stored (null: the row inherits), and what
-- of it cannot be used. The trigger sends an object in place of a value that is too large.
create or replace function duetime._read_rules(given jsonb, out rules json, out problems jsonb[])
    language plpgsql stable as $$
declare
    items jsonb := given;
    item jsonb;
    said text;
    rule json;
    found json[] := '{}';
    ids text[] := '{}';
begin
    problems := '{}';
    if jsonb_typeof(given) = 'string' then
        said := btrim(given #>> '{}', E' \t\r\n');
        if said = '' then
            return;
        elsif said like '[%' then
            begin
                items := said::jsonb;
            exception when others then
                items := jsonb_build_array(said);
            end;
        elsif said like '{%}' then
            items := (select coalesce(jsonb_agg(btrim(e.text, ' "') order by e.place), '[]')
                      from unnest(string_to_array(nullif(btrim(substr(said, 2, length(said) - 2)), ''),
                                                  ',')) with ordinality as e(text, place));
        else
            items := (select jsonb_agg(btrim(e.text) order by e.place)
                      from unnest(string_to_array(said, ',')) with ordinality as e(text, place));
        end if;
    end if;
    if items is null or jsonb_typeof(given) = 'null' then
        return;
    elsif jsonb_typeof(items) = 'object' and items ? 'too_many' or jsonb_typeof(items) = 'array'
        and jsonb_array_length(items) > 50
    then
        problems := array['{"code": "too_many_rules", "facts": {"limit": 50}}'::jsonb];
        return;
    elsif jsonb_typeof(items) <> 'array' then
        items := jsonb_build_array(items);
    end if;
    for item in select e.value from jsonb_array_elements(items) as e(value) loop
        rule := case jsonb_typeof(item)
            when 'string' then duetime._read_rule(item #>> '{}')
            when 'number' then duetime._read_rule(
                case when item::numeric = trunc(item::numeric) then trunc(item::numeric)::text end) end;
        if rule is null then
            if cardinality(problems) < 5 then
                problems := problems || jsonb_build_object('code', 'rule_unreadable', 'facts',
                    jsonb_build_object('rule', left(coalesce(item #>> '{}', 'null'), 60)));
            end if;
        elsif rule ->> 'id' <> all (ids) then
            ids := ids || (rule ->> 'id');
            found := found || rule;
        end if;
    end loop;
    if jsonb_array_length(items) = 0 or cardinality(found) > 0 then
        rules := array_to_json(found);
    end if;
end $$;
