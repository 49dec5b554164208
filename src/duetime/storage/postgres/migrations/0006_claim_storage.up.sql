-- A claim's arrays live for milliseconds. Above 2 kB the server compresses them first, which took
-- 5 % of its time in a drain; they fit into a page of 8 kB as they are.
alter table duetime.claim set (toast_tuple_target = 8160);
