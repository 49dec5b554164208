-- What `duetime doctor` asks. All of it only reads.

-- name: examine_server
select current_setting('server_version');

-- name: examine_writable
select pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean;

-- name: examine_clock
select duetime.now(), clock_timestamp();

-- name: send_notification
select pg_notify(%(channel)s, %(payload)s);

-- name: examine_vacuum
-- Our tables, those with the most dead rows first.
select format('%%I.%%I', s.schemaname, s.relname), s.n_dead_tup, s.n_live_tup,
    greatest(s.last_vacuum, s.last_autovacuum),
    current_setting('autovacuum')::boolean,
    exists (select from pg_options_to_table(c.reloptions) as o
            where o.option_name = 'autovacuum_enabled' and not o.option_value::boolean)
from pg_class as c
join pg_stat_all_tables as s on s.relid = c.oid
where c.relnamespace = (select j.relnamespace from pg_class as j where j.oid = 'duetime.job'::regclass)
  and c.relkind = 'r'
order by s.n_dead_tup desc;

-- name: examine_transactions
-- Sessions of this database that keep vacuum from removing dead rows, the oldest first.
select a.pid, a.usename, a.application_name, a.state, clock_timestamp() - a.xact_start
from pg_stat_activity as a
where a.datname = current_database() and a.pid <> pg_backend_pid()
  and a.backend_type = 'client backend'
  and coalesce(a.backend_xmin, a.backend_xid) is not null
  and a.xact_start <= clock_timestamp() - %(age)s::interval
order by a.xact_start limit 5;

-- name: examine_prepared
select p.gid, p.owner, clock_timestamp() - p.prepared from pg_prepared_xacts as p
where p.database = current_database() and p.prepared <= clock_timestamp() - %(age)s::interval
order by p.prepared limit 5;

-- name: examine_slots
-- Slots of standbys that have gone, and that once reported what their queries still need.
select s.slot_name, age(s.xmin) from pg_replication_slots as s
where s.xmin is not null and not s.active
order by 2 desc limit 5;

-- name: examine_hidden
-- Whether there are sessions of which this role sees nothing but that they are there.
select count(*) > 0 from pg_stat_activity as a
where a.datname = current_database() and a.backend_type is null
  and not pg_has_role('pg_read_all_stats', 'usage');

-- name: examine_zones
-- The offsets of each zone at each of the moments, in seconds.
select z.name, array(
    select extract(epoch from (m.at at time zone z.name) - (m.at at time zone 'UTC'))::integer
    from unnest(%(moments)s::timestamptz[]) with ordinality as m(at, place) order by m.place)
from pg_timezone_names as z
where z.name = any (%(names)s::text[])
  -- PostgreSQL reads these as abbreviations, which have one offset all the year round.
  and not exists (select from pg_timezone_abbrevs as a where a.abbrev = upper(z.name));
