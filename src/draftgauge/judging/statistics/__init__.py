"""Intervals and tests over prompts (:mod:`paired`), prompts and seeds (:mod:`crossed`), and their :mod:`effects`."""
