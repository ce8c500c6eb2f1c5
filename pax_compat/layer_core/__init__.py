"""What `base_layer` is made of: children, weights, sharding, summaries."""
