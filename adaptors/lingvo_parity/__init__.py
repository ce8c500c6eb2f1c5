"""Holds a Lingvo experiment and its translation against each other."""
