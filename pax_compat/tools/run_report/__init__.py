"""What a run has left in its folder, as a page and as a picture."""
