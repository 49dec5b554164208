"""Events of the engine, as logs, metrics and traces."""
