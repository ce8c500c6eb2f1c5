"""Checks of an input generator's Params and data before it is built."""
