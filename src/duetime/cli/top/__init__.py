"""`duetime top`: a live view of what waits and runs."""
