"""Programs that look at experiments and runs."""
