"""State of optimizers: leaves, stacked layers, moving averages."""
