"""Translators of Transformer layers and stacks."""
