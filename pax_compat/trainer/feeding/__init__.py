"""From an input to device batches: datasets, prefetching, position."""
