"""Target and draft models: loading, compression, and two engines behind one cache that can be rolled back."""
