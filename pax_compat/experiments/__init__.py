"""How experiments are found by name, changed and resolved."""
