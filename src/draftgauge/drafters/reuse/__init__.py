"""Drafters that reuse the target's hidden states, its KV cache, or both (KVShot, arXiv 2604.26412)."""
