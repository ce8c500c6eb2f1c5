"""Translators of Lingvo's machine-translation tasks."""
