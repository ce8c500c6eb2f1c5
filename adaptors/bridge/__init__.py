"""Runs Lingvo tasks that have no translation, as functions inside of JAX."""
