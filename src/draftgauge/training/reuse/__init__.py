"""Training of drafters that reuse what the target computed: answers -> features -> test-time-training unroll ->
drafter.
"""
