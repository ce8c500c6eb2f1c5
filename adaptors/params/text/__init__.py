"""Live Lingvo Params from the texts that a run of Lingvo leaves behind."""
