"""Shapes of batches: bucket bounds, and the agreement of several hosts."""
