"""Progress lines and the files of a run."""
