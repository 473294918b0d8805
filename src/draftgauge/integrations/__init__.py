"""draftgauge inside other engines."""
