"""From a Lingvo task's Params to the config of the same model in JAX."""
