"""Translators of Lingvo's speech-recognition tasks."""
