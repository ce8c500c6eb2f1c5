"""Reports of a migration: terminal, HTML and JSON."""
