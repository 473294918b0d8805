"""EAGLE-3, DFlash and DSpark drafters as published: their checkpoints read, and run on the target's hidden states."""
