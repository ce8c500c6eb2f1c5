"""Lingvo's TensorFlow checkpoints: reading, mapping, importing, exporting."""
