"""Autoregressive decoding."""
