"""Samplers of tokens, and their random streams."""
