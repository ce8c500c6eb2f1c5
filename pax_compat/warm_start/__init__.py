"""Warm start: initial values of a new run from checkpoints of other runs."""
