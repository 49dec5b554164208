"""What workers record of the attempts that they made, for statistics."""
