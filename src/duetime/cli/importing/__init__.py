"""`duetime import`: schedules of other schedulers."""
