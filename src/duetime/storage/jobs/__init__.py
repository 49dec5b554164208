"""Jobs: statements without I/O, for every backend."""
