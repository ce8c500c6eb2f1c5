"""Translators of GShard's layers and models."""
