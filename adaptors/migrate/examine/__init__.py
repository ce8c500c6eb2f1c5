"""Examining one experiment: layers, memory, input, schedule."""
