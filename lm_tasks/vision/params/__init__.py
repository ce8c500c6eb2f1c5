"""Pax-style experiments: `tasks.vision.params` once installed."""
