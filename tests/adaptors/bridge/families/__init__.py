"""Shrunk stock tasks of Lingvo outside of `lm`, one per module.

Each has `task_params()` and `batch(seed)`; see `family_parity`.
"""
