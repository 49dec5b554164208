"""Ways to send a message: one small protocol in `channel`, and siblings behind it."""
