"""What configs and maps are made of: needs no JAX."""
