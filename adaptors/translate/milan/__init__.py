"""Translators of Lingvo's milan, dual encoders."""
