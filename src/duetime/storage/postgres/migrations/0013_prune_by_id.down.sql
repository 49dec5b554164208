create index attempt_finished on duetime.attempt using brin (finished_at);
