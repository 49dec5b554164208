"""Reminders: pure values and rules."""
