"""Events of the engine, as logs (metrics and traces are siblings to come)."""
