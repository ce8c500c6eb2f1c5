"""The folder and the files of a run."""
