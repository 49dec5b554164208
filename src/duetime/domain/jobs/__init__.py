"""Jobs: pure values and rules."""
