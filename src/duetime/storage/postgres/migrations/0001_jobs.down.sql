drop table duetime.waiter, duetime.progress, duetime.parked, duetime.rate_use, duetime.queue,
    duetime.job_key, duetime.task, duetime.worker_name, duetime.worker, duetime.attempt,
    duetime.claim, duetime.due, duetime.job;
drop function duetime.now();
