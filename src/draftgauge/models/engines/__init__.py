"""What runs a model: one file, or a few of one name, for each engine."""
