"""Parts of configs and maps that know nothing of Fiddle or JAX."""
