"""`duetime flows`: see and change runs of flows."""
