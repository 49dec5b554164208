"""Values and rules of flows, without I/O and without a clock."""
