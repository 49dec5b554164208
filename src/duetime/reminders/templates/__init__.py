"""The texts of messages: templates that people write and nobody has to trust."""
