"""Runs Lingvo tasks without a translation as functions inside of JAX."""
