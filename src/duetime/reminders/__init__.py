"""What `app.scopes`, `app.subjects`, `app.reminders`, `app.recipients` and `app.tables` do, and how
a due reminder goes out."""
