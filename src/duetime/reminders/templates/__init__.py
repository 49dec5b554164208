"""The texts of messages: templates that untrusted people may write."""
