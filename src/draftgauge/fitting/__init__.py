"""Policies fitted and tuned on traces, and drafters ranked: numbers in, numbers out."""
