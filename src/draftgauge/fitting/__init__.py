"""Policies fitted on traces: numbers in, numbers out; scikit-learn is needed here and nowhere later."""
