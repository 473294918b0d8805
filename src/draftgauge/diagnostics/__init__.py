"""What a drafter and its signals are worth: acceptance, latency and calibration, with intervals."""
