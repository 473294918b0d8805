"""KVShot (arXiv 2604.26412): hidden states, the KV cache, or both, under one matched training."""
