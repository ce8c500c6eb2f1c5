"""Lingvo experiments as experiments of the core."""
