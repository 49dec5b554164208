"""Statements that read and write statistics, without I/O."""
