"""Experiments in the way of Pax: `tasks.lm.params` once installed."""
