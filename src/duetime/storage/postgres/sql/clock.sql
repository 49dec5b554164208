-- The database's clock, and how tests drive it.

-- name: now
select duetime.now();

-- name: create_clock
create table if not exists duetime.driven_clock (moment timestamptz);

-- name: set_clock
with old as (delete from duetime.driven_clock)
insert into duetime.driven_clock (moment) select %(now)s where %(now)s::timestamptz is not null;

-- name: driven_clock
create or replace function duetime.now() returns timestamptz
    language sql volatile as 'select moment from duetime.driven_clock';

-- name: real_clock
create or replace function duetime.now() returns timestamptz
    language sql volatile as 'select clock_timestamp()';
