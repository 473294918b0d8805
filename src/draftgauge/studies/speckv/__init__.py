"""SpecKV (arXiv 2605.02888) from its author's records: the paper to its last digit, and what the records say."""
