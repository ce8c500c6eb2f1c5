"""Lingvo's registry: names of experiments and their modules."""
