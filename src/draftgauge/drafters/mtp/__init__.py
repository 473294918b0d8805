"""MTP heads: the drafters that ship inside a target's own checkpoint, families as data."""
