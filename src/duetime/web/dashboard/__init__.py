"""The dashboard: server-rendered pages, one module per screen."""
