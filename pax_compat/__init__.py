"""The Pax programming model on today's JAX."""

# setup.py reads it, without importing this package.
__version__ = '0.1.0'
