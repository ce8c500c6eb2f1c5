"""Lingvo's layers, optimizers and schedules in JAX, without Lingvo."""
