"""What a drafter is worth and what limits it: acceptance, trees, latency, query error, gradients, gate, rank."""
