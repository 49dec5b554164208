alter table duetime.claim reset (toast_tuple_target);
