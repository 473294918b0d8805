"""What would have happened otherwise, exactly and without a model, and what to say of it: replay, verdict, fitting."""
