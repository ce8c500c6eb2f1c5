"""Components of `base_layer`: children, weights, sharding, summaries."""
