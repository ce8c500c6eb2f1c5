"""Trial runs: every experiment is trained for a few steps, reduced."""
