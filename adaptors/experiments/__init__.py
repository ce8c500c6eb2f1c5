"""Lingvo experiments as `BaseExperiment`s."""
