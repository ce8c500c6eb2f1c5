"""Gradients beside the usual ones: norms for each example, statistics."""
