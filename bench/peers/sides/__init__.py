"""One module for each system: how it enqueues and how its worker runs. See `side`."""
