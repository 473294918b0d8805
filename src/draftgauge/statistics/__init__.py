"""Intervals and comparisons by resampling: of prompts (:mod:`paired`), and of prompts and seeds at once
(:mod:`crossed`).
"""
