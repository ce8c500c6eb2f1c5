"""Lingvo Params: trees, values, overrides, shrinking, text files."""
