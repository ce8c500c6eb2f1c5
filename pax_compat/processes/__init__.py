"""Several processes: the first one, a channel between them, failures."""
