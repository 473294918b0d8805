"""Serving engines from outside: what they report, what they cost, how they are set; no torch, and no engine."""
