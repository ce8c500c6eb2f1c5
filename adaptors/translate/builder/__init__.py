"""Translators of graphs made by `lingvo.core.builder`."""
