"""`duetime schedules`: see, make and change what runs when."""
