"""What a live bench compares, and what it says of it."""
