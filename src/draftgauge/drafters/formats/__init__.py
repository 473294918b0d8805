"""EAGLE-3, DFlash and DSpark drafters in the formats of serving engines: read, run on the target's states, written."""
