"""What runs: worker, executor, rescuer, pruner. Knows every backend by its protocol alone."""
