"""Small modules of Pax that have no room in the core."""
