"""Pure values and rules. Nothing here does I/O or reads a clock."""
