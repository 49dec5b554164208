"""Who may use the service, as statements without I/O."""
