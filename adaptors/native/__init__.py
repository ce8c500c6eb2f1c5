"""Lingvo's native TensorFlow ops, repaired for older systems."""
