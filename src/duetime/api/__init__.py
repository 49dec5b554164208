"""What users call: one module per noun."""
