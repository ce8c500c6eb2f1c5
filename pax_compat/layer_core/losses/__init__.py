"""Losses that layers add to the loss of their model."""
