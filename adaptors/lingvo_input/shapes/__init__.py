"""Shapes of batches: bucket bounds, and agreement between hosts."""
