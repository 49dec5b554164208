"""Schedules: pure values and rules."""
