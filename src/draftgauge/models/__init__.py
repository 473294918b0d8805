"""Target and draft models: loading, compression, and four engines behind one contract of a cache that rolls back."""
