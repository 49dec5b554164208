"""The service: the HTTP API and the dashboard. It uses the Python API as anybody else does."""
