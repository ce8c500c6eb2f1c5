"""Lingvo params modules: `lingvo.tasks.lm.params` once they are mounted."""
