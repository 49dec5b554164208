-- The next number of a sequence, for tokens and the ids of workers: greater than any that was ever given,
-- also by a server that has died since and whose last transactions are lost.
-- Asynchronous replication, or a backup, may lack numbers that were given. Each promotion and each
-- restore begins a new timeline: the first who meets it moves the sequences on, by more than can have
-- been given meanwhile; the others wait for its row. Timelines that no claim has seen count, too: numbers
-- that were given there may be lost as well.
create or replace function duetime._next_number(of_sequence regclass) returns bigint
    language plpgsql as $$
declare
    gap constant bigint := 1 << 30;
    here bigint;
    known bigint;
begin
    begin
        here := ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint;
    exception when others then
        -- A service that hides its log. It has no timelines either.
        return nextval(of_sequence);
    end;
    select t.known into known from duetime.timeline as t;
    if known is distinct from here then
        select t.known into known from duetime.timeline as t for update;
        if known is distinct from here then
            perform setval(s.name, nextval(s.name) + gap * greatest(here - known, 1))
            from unnest(array['duetime.claim_token_seq', 'duetime.worker_id_seq']::regclass[]) as s(name);
            update duetime.timeline set known = here;
        end if;
    end if;
    return nextval(of_sequence);
end $$;
