"""A target and what drafts for it: loaded, given prompts, recorded, and what its steps cost."""
