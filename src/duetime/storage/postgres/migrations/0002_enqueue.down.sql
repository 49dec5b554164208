drop function duetime.enqueue(text, json, text, integer, timestamptz, interval, text, text,
    interval, text, integer, interval, timestamptz);
drop function duetime.enqueue_many(json, boolean);
drop function duetime._read_jobs(json, timestamptz);
drop function duetime.wake_up(text[]);
drop function duetime.fall_asleep(text[]);
drop function duetime.wake(text, timestamptz);
