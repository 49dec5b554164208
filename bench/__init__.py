"""Measures Duetime beside what hand-written SQL reaches on the same machine, in one run."""
