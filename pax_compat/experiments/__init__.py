"""How experiments are found and changed by name."""
