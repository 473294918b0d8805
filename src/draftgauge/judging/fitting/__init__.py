"""Policies fitted and tuned on traces: numbers in, numbers out."""
