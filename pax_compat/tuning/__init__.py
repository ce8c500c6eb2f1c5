"""Studies: many runs of one experiment that search for good settings.

See `docs/tuning.md`. `study.run` starts the trials, each of which is a run of
`pax_compat.main` in a folder of its own.
"""
