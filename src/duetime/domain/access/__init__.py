"""Who may use the service: API tokens, accounts and their sessions."""
