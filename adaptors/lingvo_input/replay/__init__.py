"""Training data in an order that can be repeated."""
