"""Multi-process runs: process 0, a channel between them, failures, hangs."""
