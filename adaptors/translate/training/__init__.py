"""Translators of learners, optimizers, schedules and programs."""
