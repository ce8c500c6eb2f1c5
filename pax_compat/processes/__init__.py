"""Multi-process runs: process 0, a channel between processes, failures."""
