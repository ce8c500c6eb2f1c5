"""Finding, changing and resolving experiments."""
