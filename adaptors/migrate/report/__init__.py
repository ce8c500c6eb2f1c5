"""Reports of a migration: terminal and HTML."""
