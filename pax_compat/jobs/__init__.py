"""Jobs that use the checkpoints of a run: they evaluate, decode and infer."""
