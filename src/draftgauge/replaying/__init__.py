"""What would have happened otherwise: policies replayed on a recorded trace, exactly, without a model."""
