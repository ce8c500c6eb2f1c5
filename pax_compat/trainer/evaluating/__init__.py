"""Evaluation and decoding while training."""
