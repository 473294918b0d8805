"""Drafters and settings in the formats of serving engines."""
