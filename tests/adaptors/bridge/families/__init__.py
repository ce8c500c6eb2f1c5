"""Reduced forms of Lingvo's stock tasks outside of `lm`, one a module.

Each has `task_params()` and `batch(seed)`; see `family_parity`.
"""
