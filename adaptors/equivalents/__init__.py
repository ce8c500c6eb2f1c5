"""Lingvo's own layers, optimizers and schedules in JAX; they need no Lingvo."""
