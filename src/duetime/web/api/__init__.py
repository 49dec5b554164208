"""The HTTP API: one module per noun, with the words of the Python API."""
