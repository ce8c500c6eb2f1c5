"""The trainer: mesh, state, steps, feeding, evaluation and the loop."""
