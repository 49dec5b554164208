"""The client of the HTTP API: the verbs of the Python API, for programs without the database."""

from duetime.client.client import Client

__all__ = ["Client"]
