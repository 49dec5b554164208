-- What `duetime doctor` asks.

-- name: examine_clock
-- The time at which a test has stopped the clock. No row: it was not stopped.
select value from duetime_counter where name = 'clock';
