"""EAGLE-3 and DFlash drafters as published: their checkpoints read, and run on the target's hidden states."""
