"""Intervals and tests by resampling prompts (:mod:`paired`), or prompts and seeds together (:mod:`crossed`)."""
