"""What workers do for schedules."""
