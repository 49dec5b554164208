drop view duetime_jobs;
