"""Products that a config puts in place of those of layers; see `base_ops`."""
