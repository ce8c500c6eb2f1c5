"""Configs as text, and overrides of their fields."""
