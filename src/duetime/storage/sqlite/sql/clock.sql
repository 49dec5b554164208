-- The database's clock, and how tests drive it.

-- name: drive_clock
insert into duetime_counter (name, value) select 'clock', :now where :now is not null
on conflict (name) do update set value = excluded.value;

-- name: free_clock
delete from duetime_counter where name = 'clock' and :now is null;
