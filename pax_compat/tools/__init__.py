"""Programs that inspect experiments and runs."""
