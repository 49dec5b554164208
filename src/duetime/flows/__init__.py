"""What runs inside a worker for flows."""
