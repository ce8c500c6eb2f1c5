"""Translators of tasks."""
