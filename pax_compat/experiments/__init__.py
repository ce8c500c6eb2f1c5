"""What finding an experiment and resolving it for a run is made of."""
