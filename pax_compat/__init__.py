"""The Pax programming model on today's JAX."""
