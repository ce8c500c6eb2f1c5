"""Translators of Lingvo's image tasks."""
