"""Training of drafters that reuse what the target computed: answers, features, unrolled training, drafter."""
