-- The pruner goes by the ids of jobs. What every completion paid for serves nobody any more.
drop index duetime.attempt_finished;
