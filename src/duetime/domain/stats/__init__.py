"""The numbers that people watch: pure values and rules."""
