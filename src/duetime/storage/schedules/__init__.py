"""Schedules: statements without I/O, for every backend."""
