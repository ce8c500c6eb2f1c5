"""Pax-style experiments: `tasks.lm.params` once installed."""
