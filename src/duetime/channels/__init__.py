"""Ways to tell someone: one small protocol in `channel`, and siblings behind it."""
