drop function duetime.complete(json);
drop view duetime.jobs;
