"""Gradients before the update: norms, scaling, regularization, masks."""
