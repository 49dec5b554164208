"""Statements of flows, without I/O, for every backend."""
