"""`duetime reminders`: what will be sent, what was, and why not."""
