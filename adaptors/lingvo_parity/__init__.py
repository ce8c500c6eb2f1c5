"""Compares a Lingvo experiment with its translation."""
